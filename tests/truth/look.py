"""The truth about one run, in numbers: `cd tests && python -m truth.look 12`. For finding out why an answer was wrong."""

import argparse
from statistics import fmean, median

from .causes import CAUSES, CLEAN, plan
from .emit import emit
from .simulate import simulate


def requests(steps):
    return [request for step in steps for sample in step.samples for turn in sample.turns for request in turn.requests]


def mean(values):
    return f"{fmean(values):9.2f}" if values else "        -"


def look(planned, emission, steps):
    out = [
        f"run {emission.run}: {planned.cause} in step {planned.planted}, most felt in step {planned.step}",
        f"true cost {planned.true_cost:.1f} s of {planned.usual_wall:.1f} s ({planned.share:.0%})",
        f"change {planned.different}",
        f"sent as {emission.layout}, {emission.dialect}: {emission.notes}",
        "walls " + " ".join(f"{step.wall:.1f}" for step in steps),
    ]
    asked = planned.asked
    this, others = [steps[asked]], [step for step in steps if step.number != asked]
    out += ["", f"{'phase':36} {'step ' + str(asked):>9} {'median':>9}"]
    for phase in steps[asked].phases:
        usual = [p.end - p.start for step in others for p in step.phases if p.key == phase.key]
        out.append(f"{emission.phase_names[phase.key]:36} {phase.end - phase.start:9.2f} {median(usual) if usual else float('nan'):9.2f}")
    titles = ("requests", "tokens/s", "queue s", "prefill s", "uncached", "output")
    out += ["", f"{'engine':24} " + " ".join(f"{title:>9} {'usual':>9}" for title in titles)]
    for index, name in enumerate(emission.engine_names):
        cells = []
        both = [[r for r in requests(some) if index in (r.engine, r.decoder) and r.decode_start is not None and r.prefill_end is not None] for some in (this, others)]
        shown = (
            lambda r: r.output / max(r.end - r.decode_start, 1e-9), lambda r: r.prefill_start - r.sent, lambda r: r.prefill_end - r.prefill_start,
            lambda r: r.prompt - r.cached, lambda r: r.output,
        )
        cells = [f"{len(both[0]):9} {len(both[1]) / len(others):9.1f}"]
        cells += [f"{mean([value(r) for r in both[0]])} {mean([value(r) for r in both[1]])}" for value in shown]
        out.append(f"{name:24} " + " ".join(cells))
    calls = lambda some, name: [c for step in some for s in step.samples for t in s.turns for c in t.calls if c.tool == name]
    out += ["", f"{'tool':24} {'calls':>9} {'mean s':>9} {'usual s':>9} {'not ok':>9}"]
    for tool in planned.world.tools:
        now, usual = calls(this, tool.name), calls(others, tool.name)
        bad = sum(c.outcome != "ok" for c in now)
        out.append(f"{tool.name:24} {len(now):9} {mean([c.end - c.start for c in now])} {mean([c.end - c.start for c in usual])} {bad:9}")
    for title, value in (("reward s", lambda s: s.reward_end - s.reward_asked), ("output tokens", lambda s: s.tokens), ("sample s", lambda s: s.end - s.start)):
        now, usual = ([value(s) for step in some for s in step.samples] for some in (this, others))
        out.append(f"{title:24} {mean(now)} {mean(usual)} largest {max(now):9.2f} {max(usual):9.2f}")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--only", choices=[*CAUSES, CLEAN])
    options = parser.parse_args()
    planned = plan(options.seed, options.only)
    steps = simulate(planned.world, planned.changes)
    print(look(planned, emit(planned, steps), steps))


if __name__ == "__main__":
    main()
