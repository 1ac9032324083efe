"""A plain GRPO loop that runs on any CPU in seconds: a table of logits learns to add.

Real sampling, real rewards, a real update, instrumented in a dozen lines (look for `rollscope`). Start `rollscope serve` first,
or pass --embedded.
"""

import argparse
import math
import random

import rollscope

GROUP, PROMPTS, RATE = 8, 8, 2.0


class Policy:
    """One row of logits for every sum that can be asked."""

    def __init__(self):
        self.logits = {}

    def row(self, prompt):
        return self.logits.setdefault(prompt, [0.0] * 10)

    def probabilities(self, prompt):
        row = self.row(prompt)
        top = max(row)
        weights = [math.exp(x - top) for x in row]
        total = sum(weights)
        return [w / total for w in weights]

    def sample(self, prompt):
        return random.choices(range(10), self.probabilities(prompt))[0]

    def update(self, prompt, answer, advantage):
        """One step up the gradient of advantage * log p(answer)."""
        for token, p in enumerate(self.probabilities(prompt)):
            self.row(prompt)[token] += RATE * advantage * ((token == answer) - p) / GROUP


def reward(prompt, answer):
    return 1.0 if sum(prompt) % 10 == answer else 0.0


def train(steps):
    policy = Policy()
    random.seed(0)
    for step in range(steps):
        with rollscope.step(step):
            prompts = [(random.randrange(3), random.randrange(3)) for _ in range(PROMPTS)]
            groups = []
            with rollscope.span("rollout", {"prompts": PROMPTS, "group": GROUP}, phase="rollout"):
                for g, prompt in enumerate(prompts):
                    answers = []
                    for n in range(GROUP):
                        with rollscope.sample(g * GROUP + n, group=g):
                            with rollscope.span("generate"):
                                answer = policy.sample(prompt)
                            with rollscope.span("reward", phase="reward") as span:
                                score = reward(prompt, answer)
                                span.set("reward", score)
                            answers.append((answer, score))
                            if step % 10 == 0 and n == 0:
                                question = {"role": "user", "content": f"{prompt[0]} + {prompt[1]} = ? (last digit)"}
                                said = {"role": "assistant", "content": str(answer)}
                                rollscope.log({"answers": rollscope.Trace([question, said], {"reward": score, "group_id": g})})
                    groups.append((prompt, answers))
            with rollscope.span("train", phase="train"):
                for prompt, answers in groups:
                    scores = [score for _, score in answers]
                    mean = sum(scores) / GROUP
                    spread = math.sqrt(sum((s - mean) ** 2 for s in scores) / GROUP)
                    for answer, score in answers:
                        policy.update(prompt, answer, (score - mean) / (spread + 1e-4))
            scores = [score for _, answers in groups for _, score in answers]
            flat = sum(len({score for _, score in answers}) == 1 for _, answers in groups)
            rollscope.log({"reward/mean": sum(scores) / len(scores), "groups/without_gradient": flat}, step=step)
    return sum(scores) / len(scores)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--embedded", action="store_true", help="start a server of its own")
    options = parser.parse_args()
    config = {"steps": options.steps, "group": GROUP, "prompts": PROMPTS, "rate": RATE}
    with rollscope.init(project="toy", name="grpo", config=config, embedded=options.embedded) as run:
        final = train(options.steps)
    print(f"mean reward of the last step: {final:.2f}; {rollscope.stats()['recorded']} things recorded in run {run.id}")
