"""TRL's GRPO trainer with the callback. Needs `pip install trl datasets`; downloads a tiny model."""

import sys

try:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
except ImportError as missing:
    print(f"{missing.name} is not installed")
    sys.exit(77)

from rollscope.trl import RollscopeCallback


def short_answers(completions, **_):
    return [-float(len(text)) for text in completions]


if __name__ == "__main__":
    callback = RollscopeCallback(project="toy", name="trl")
    trainer = GRPOTrainer(
        model="trl-internal-testing/tiny-Qwen2ForCausalLM-2.5",
        reward_funcs=[callback.reward(short_answers)],
        args=GRPOConfig(
            output_dir="trl-out",
            max_steps=3,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": f"{a} + 1 ="} for a in range(8)]),
        callbacks=[callback],
    )
    trainer.train()
