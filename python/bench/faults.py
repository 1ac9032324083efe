"""What recording costs a training loop while the server, or the disk, is out of order.

    python python/bench/faults.py [--json] [--steps N] [FAULT ...]

Each fault has a process of its own, with a fake server in another. A step is arithmetic (about 50 ms), 20 spans with three
attributes, one call of `log` and, every tenth time, a conversation: 400 spans per second. The
calls that record are timed apart from the arithmetic, by the clock: time that they wait counts. The figure is their share. Beside
it stand the CPU time of the background thread, memory, and what became of the data.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

FAULTS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "python" / "faults.py"
HEALTHY, FULL_DISK = "healthy", "down, full disk"
NAMES = [HEALTHY, "down", FULL_DISK, "slow", "hanging", "resetting", "nonsense", "garbage", "500", "503", "418"]
STEP_SECONDS = 0.050
#: Of a step's time.
LIMIT_PERCENT = 1.0


def train(steps: int) -> dict[str, float]:
    import numpy
    import rollscope

    rollscope.init(project="bench", name="faults")
    matrix = numpy.random.default_rng(0).random((256, 256))
    rounds = 1

    def work() -> None:
        for _ in range(rounds):
            matrix @ matrix

    def cost() -> float:
        begin = time.thread_time()
        work()
        return time.thread_time() - begin

    rounds = max(1, round(STEP_SECONDS / statistics.median(cost() for _ in range(21))))
    messages = [{"role": "user", "content": "x" * 2000}]

    def spans(n: int) -> None:
        with rollscope.step(n):
            for i in range(19):
                with rollscope.span("generate", {"i": i, "loss": 2.5, "text": "some text"}):
                    pass

    def log(n: int) -> None:
        rollscope.log({"loss": 1.3, "reward/mean": 0.4}, step=n)
        if n % 10 == 0:
            rollscope.log({"agent": rollscope.Trace(messages)}, step=n)

    def timed(function, *arguments: int) -> float:
        begin = time.perf_counter()
        function(*arguments)
        return time.perf_counter() - begin

    for n in range(10):
        spans(n)
        work()
        log(n)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    working = recording = longest = 0.0
    for n in range(steps):
        working += timed(work)
        calls = timed(spans, n) + timed(log, n)
        recording += calls
        longest = max(longest, calls)
    left = timed(rollscope.shutdown)
    counts = rollscope.stats()
    return {
        "step_ms": 1e3 * working / steps,
        "added_us": 1e6 * recording / steps,
        "longest_ms": 1e3 * longest,
        "slower_percent": 100 * recording / working,
        "thread_percent": 100 * counts["thread_cpu_ns"] / 1e9 / working,
        "memory_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024,
        "exit_s": left,
        **{name: counts[name] for name in ("recorded", "sent", "spilled", "dropped", "rejected", "errors")},
    }


def measure(name: str, steps: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLSCOPE_", "OTEL_"))}
        environment.update(ROLLSCOPE_SPILL_DIR=folder, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
        server = None
        if name == FULL_DISK:
            # A disk of 16 KiB, as far as the package can tell.
            environment.update(ROLLSCOPE_SPILL_BYTES="16384", ROLLSCOPE_QUEUE_BYTES="65536")
        if name in ("down", FULL_DISK):
            environment["ROLLSCOPE_ENDPOINT"] = "http://127.0.0.1:1"
        else:
            command = [sys.executable, str(FAULTS), name]
            server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            environment["ROLLSCOPE_ENDPOINT"] = server.stdout.readline().strip()
        try:
            this = [sys.executable, __file__, "--train", "--steps", str(steps)]
            found = subprocess.run(this, env=environment, capture_output=True, text=True, check=True)
            return json.loads(found.stdout.splitlines()[-1])
        finally:
            if server is not None:
                server.stdin.close()
                server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"one of: {', '.join(NAMES)}")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(options.steps)))
        return
    for name in options.faults:
        if name not in NAMES:
            parser.error(f"unknown fault `{name}`; expected one of: {', '.join(NAMES)}")
    figures = {name: measure(name, options.steps) for name in options.faults or NAMES}
    if options.json:
        print(json.dumps(figures))
        return
    print(
        f"{'server':18}{'step':>9}{'added':>10}{'slower':>9}{'longest':>11}{'thread':>9}{'memory':>10}{'exit':>8}"
        "   what became of the data"
    )
    for name, f in figures.items():
        became = ", ".join(f"{f[key]:.0f} {key}" for key in ("recorded", "sent", "spilled", "dropped", "rejected"))
        print(
            f"{name:18}{f['step_ms']:>6.1f} ms{f['added_us']:>7.1f} us{f['slower_percent']:>7.2f} %"
            f"{f['longest_ms']:>8.2f} ms{f['thread_percent']:>7.2f} %"
            f"{f['memory_mib']:>6.1f} MiB{f['exit_s']:>6.2f} s   {became}"
        )
    worst = max(f["slower_percent"] for f in figures.values())
    print(f"The slowest is slower by {worst:.2f} %: {worst / LIMIT_PERCENT:.2f} of the limit ({LIMIT_PERCENT:g} %)")


if __name__ == "__main__":
    main()
