"""Runs libFuzzer over every target in turn and prints a table: `make fuzz MINUTES=10`, or `fuzz/run.py --minutes 10 promql`.

The column `in all` adds up the runs since target/fuzz was removed. Inputs that reach new code are kept in target/fuzz/corpus,
inputs that fail in target/fuzz/failures. To run one again:
`ROLLSCOPE_FUZZ=promql target/debug/rollscope-fuzz FILE`.

With --jobs 2, two targets run at a time. With --release, all dependencies are optimised, which takes much longer to build.
"""

import argparse
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "target" / "fuzz"
TOTALS = WORK / "totals.json"
# What parsers spend their time in and other builds do not optimise. Of dependencies, only what nothing but our crates needs:
# the rest is shared with other builds.
OPTIMISED = ["rollscope-alarms", "rollscope-search", "rollscope-server", "levenshtein_automata", "serde_yaml_ng", "tantivy",
             "tantivy-fst", "tantivy-query-grammar", "unsafe-libyaml"]


def targets():
    """Names and longest inputs, as `targets.rs` lists them."""
    text = (ROOT / "fuzz" / "src" / "targets.rs").read_text()
    return {name: int(length) for name, length in re.findall(r'^ +target\("(\w+)", (\d+)', text, re.MULTILINE)}


def build(profile):
    command = f"cargo build --locked --workspace --profile {profile} --bin rollscope-fuzz --features rollscope-fuzz/libfuzzer"
    environment = {**os.environ, "RUSTC_WORKSPACE_WRAPPER": str(ROOT / "fuzz" / "instrument.sh")}
    optimised = [f"--config=profile.dev.package.{package}.opt-level=2" for package in OPTIMISED]
    subprocess.run([*command.split(), *optimised], cwd=ROOT, check=True, env=environment)


def count(name, inputs):
    """Adds to the inputs of a target, also while other runs do, and returns all of them."""
    with TOTALS.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        totals = json.loads(file.read() or "{}")
        totals[name] = totals.get(name, 0) + inputs
        file.truncate(0)
        file.write(json.dumps(totals))
    return totals[name]


def fuzz(binary, name, max_len, seconds, runs):
    """Returns a row of the table, and whether anything failed."""
    corpus, failures = WORK / "corpus" / name, WORK / "failures"
    corpus.mkdir(parents=True, exist_ok=True)
    failures.mkdir(parents=True, exist_ok=True)
    dictionary = ROOT / "fuzz" / "dictionaries" / name
    # The time-out is that of the clock on the wall: it is for what never ends. CPU time is bounded by oracle.rs.
    flags = [f"-max_total_time={seconds}", f"-runs={runs}", f"-max_len={max_len}", "-print_final_stats=1", "-rss_limit_mb=4096",
             "-timeout=900", "-verbosity=1", f"-artifact_prefix={failures}/{name}-", "-reload=0"]
    if dictionary.exists():
        flags.append(f"-dict={dictionary}")
    log = WORK / f"{name}.log"
    start = time.monotonic()
    with log.open("w") as out:
        done = subprocess.run([binary, *flags, corpus, ROOT / "fuzz" / "corpus" / name], stdout=out, stderr=out,
                              env={**os.environ, "ROLLSCOPE_FUZZ": name, "RUST_BACKTRACE": "1"})
    took = time.monotonic() - start
    text = log.read_text(errors="replace")
    costs = dict(re.findall(r"(\w+)=(\d+)", text.rpartition("costs: ")[2].partition("\n")[0]))
    inputs = int(costs.get("inputs", 0))
    total = count(name, inputs)
    coverage = re.findall(r"cov: (\d+)", text)
    row = [name, f"{inputs:,}", f"{total:,}", f"{inputs / took:,.0f}",
           str(len(list(corpus.iterdir()))), coverage[-1] if coverage else "-",
           f"{int(costs.get('slowest_us', 0)) / 1000:.1f} ms", f"{int(costs.get('heap', 0)) / 1024:,.0f} KiB",
           costs.get("long_heap_per_byte", "-"), "0" if done.returncode == 0 else f"1: see {log.relative_to(ROOT)}"]
    return row, done.returncode != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="for all targets together")
    parser.add_argument("--runs", type=int, default=-1, help="inputs per target at most")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--max-len", type=int, default=10**9, help="bytes of an input at most; shorter ones are faster")
    parser.add_argument("--no-build", action="store_true")
    parser.add_argument("--release", action="store_true", help="optimise dependencies, too")
    parser.add_argument("targets", nargs="*")
    args = parser.parse_args()
    known = targets()
    chosen = args.targets or list(known)
    if unknown := set(chosen) - set(known):
        parser.error(f"unknown targets {sorted(unknown)}; expected some of: {', '.join(known)}")
    if not args.no_build:
        build("release" if args.release else "dev")
    binary = ROOT / "target" / ("release" if args.release else "debug") / "rollscope-fuzz"
    columns = ["target", "inputs", "in all", "per second", "new in the corpus", "edges", "slowest", "most heap",
               "heap per byte of long inputs", "failures"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|", flush=True)
    failed = False
    seconds = max(1, int(args.minutes * 60 * args.jobs / len(chosen)))
    with ThreadPoolExecutor(args.jobs) as pool:
        for row, bad in pool.map(lambda name: fuzz(binary, name, min(known[name], args.max_len), seconds, args.runs), chosen):
            failed |= bad
            print("| " + " | ".join(row) + " |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
