"""Reads one JSON object a line (run, step, time_s, metrics) and hands it to Weights & Biases through its own package.

Started by rollscope, one process a run, with the settings as one JSON argument. Answers every line with "ok" or
"failed: why", so that rollscope knows what was taken.
"""

import json
import sys


def main():
    settings = json.loads(sys.argv[1])
    import wandb

    run = wandb.init(
        project=settings["project"],
        entity=settings.get("entity") or None,
        name=settings["run"],
        id=settings["id"],
        resume="allow",
        mode=settings["mode"],
        dir=settings["dir"],
        settings=wandb.Settings(console="off", silent=True),
    )
    # Steps may come again with late data, which W&B's own step does not allow; ours is a column like any other.
    run.define_metric("rollscope/step")
    run.define_metric("*", step_metric="rollscope/step")
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            row = json.loads(line)
            values = {k: float(v) for k, v in row["metrics"].items()}
            run.log({**values, "rollscope/step": row["step"]})
            print("ok", flush=True)
        except Exception as error:  # The next line may be fine.
            print("failed: " + str(error).replace("\n", " "), flush=True)
    run.finish()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        print("failed: " + str(error).replace("\n", " "), flush=True)
        sys.exit(1)
