"""Sends generated runs to the real program and compares what it says with the truth.

    cd tests && python -m truth.judge --seeds 0:60

Seeds 0 to 999 are for tuning, seeds from 10000 for judging. `--seeds 12:13 --keep DIR` leaves the data of one run in DIR.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from statistics import median

import requests

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from conftest import Server

from .causes import ACCUSING, CAUSES, CLEAN, NOT_CAUSES, plan
from .emit import DIALECTS, LAYOUTS, DoesNotFit, emit
from .simulate import simulate

# By the true cost as a share of the step without the cause. What nobody felt needs no answer.
SIZES = ((0.30, ">=30%"), (0.15, "15-30%"), (0.03, "3-15%"), (float("-inf"), "unfelt"))
# Runs that share a server, and its data. Their engines are different ones.
RUNS_PER_SERVER = 10
SENDERS = 3


# --- One run -----------------------------------------------------------------------------------------------------------------


def send(server, emission):
    """Several senders at once. A response without an error means that the data is on disk."""

    def post(body):
        answer = requests.post(server.http + "/v1/traces", data=body, headers={"content-type": "application/x-protobuf"}, timeout=120)
        answer.raise_for_status()

    with ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(post, emission.requests))


def ask(server, path):
    """An answer, or the error as text."""
    answer = requests.get(server.url + path, timeout=300)
    return (answer.json(), None) if answer.ok else (None, f"{answer.status_code}: {answer.text[:200]}")


def close(a, b, within=1e-6):
    return abs(a - b) <= within * max(1.0, abs(a), abs(b))


def is_named(right, finding, planned, emission):
    """Whether a finding is a right answer, evidence included."""
    if finding["kind"] != right.kind:
        return False
    evidence, change = finding.get("evidence") or {}, planned.change
    named = lambda key: str(evidence.get(key) or "")
    # A process may be called by its service, too: `sglang on node-3`.
    process = lambda key, name: named(key) == name or named(key).endswith(" " + name)
    if right.names == "engine":
        return process("engine", emission.engine_names[change.engine])
    if right.names == "phase":
        return named("phase") == emission.phase_names[change.phase]
    if right.names == "tool":
        return change.tool in named("tool").lower() if emission.tools_named else True
    if right.names == "rank":
        name = emission.rank_names[change.rank]
        return process("worker", name) or process("engine", name) or named("rank") == str(change.rank)
    if right.names == "sample":
        seen = {str(s) for s in evidence.get("samples") or []} | {str(s.get("sample_id")) for s in evidence.get("spans") or []}
        return emission.sample_id(planned.planted, change.straggler) in seen if emission.samples_named else True
    if right.names == "source":
        return named("source") == planned.world.sources[change.source].name
    return True


def decide(planned, emission, findings):
    """`first`, `near`, `wrong` or `nothing`, and the finding it is about."""
    if not findings:
        return "nothing", None
    first = findings[0]
    if any(is_named(right, first, planned, emission) for right in planned.right):
        return "first", first
    # That the rollout took long is no answer: it contains everything that could be one.
    rollout = (first.get("evidence") or {}).get("phase") == emission.phase_names["rollout"]
    return ("near" if first["kind"] in planned.near and not rollout else "wrong"), first


def exactness(report, difference, step, emission):
    """What must hold to the last digit. Absent where there was nothing to check."""
    checks = {}
    if report:
        wall = report["wall_s"]
        checks["phases add up"] = close(sum(p["seconds"] for p in report["phases"]), wall)
        checks["path adds up"] = close(sum(p["seconds"] for p in report["critical_path"]["totals"]), wall)
        checks["wall is true"] = close(wall, step.wall, 1e-5)
        said = defaultdict(float)
        for phase in report["phases"]:
            said[phase["name"]] += phase["seconds"]
        # The spans of ranks may stand for the phase that they are in.
        true = [p for p in step.phases if p.key != "train"]
        checks["phases are true"] = all(close(said[emission.phase_names[p.key]], p.end - p.start, 1e-4) for p in true)
    if difference:
        checks["diff adds up"] = close(sum(c["change_s"] for c in difference["changes"]), difference["change_s"]) and close(
            difference["after_s"] - difference["before_s"], difference["change_s"]
        )
    return checks


def judge(server, seed, only=None, layout=None, dialect=None, sent=None, **fixed):
    """The record of one run. `sent` replaces settings of `emit`, `fixed` parts of the world."""
    began = time.monotonic()
    planned = plan(seed, only, **fixed)
    steps = simulate(planned.world, planned.changes)
    emission = emit(planned, steps, layout, dialect, **(sent or {}))
    send(server, emission)
    asked = planned.asked
    report, failed = ask(server, f"/api/v1/runs/{emission.run}/steps/{asked}/report")
    difference, _ = ask(server, f"/api/v1/runs/{emission.run}/diff?step={asked - 1}&with={asked}")
    record = {
        "seed": seed, "cause": planned.cause, "layout": emission.layout, "dialect": emission.dialect, "run": emission.run, "step": asked,
        "planted": planned.planted, "true_cost_s": planned.true_cost, "usual_wall_s": planned.usual_wall, "share": planned.share,
        "wall_s": steps[asked].wall, "said_wall_s": report and report["wall_s"], "spans": emission.spans, "notes": emission.notes,
        "change": planned.different,
        "checks": exactness(report, difference, steps[asked], emission), "error": failed, "text": report and report["text"],
    }
    if planned.change and planned.change.engine is not None:
        record["engine"] = emission.engine_names[planned.change.engine]
    if report:
        record["phases"] = {p["name"]: round(p["seconds"], 2) for p in report["phases"]}
        record["true_phases"] = {emission.phase_names[p.key]: round(p.end - p.start, 2) for p in steps[asked].phases}
        if record["usual_wall_s"]:
            record["path"] = [(p["name"], round(p["seconds"], 2)) for p in report["critical_path"]["totals"][:6]]
    if planned.cause == CLEAN:
        found, failed = ask(server, f"/api/v1/runs/{emission.run}/findings")
        found = found["findings"] if found else []
        record["accused"] = [(f["step"], f["kind"], round(f["cost_s"], 1), f["text"]) for f in found if f["kind"] in ACCUSING]
        record["said"] = [f["kind"] for f in found if f["kind"] not in NOT_CAUSES]
        record["error"] = record["error"] or failed
    else:
        findings = [f for f in report["findings"] if f["kind"] not in NOT_CAUSES] if report else []
        record["verdict"], first = decide(planned, emission, findings)
        record["listed"] = any(is_named(right, f, planned, emission) for right in planned.right for f in findings)
        record["said"] = [(f["kind"], {k: v for k, v in f["evidence"].items() if k not in ("samples", "spans")}, round(f["cost_s"], 2), f["text"]) for f in findings[:4]]
        record["cost_s"] = first and first["cost_s"]
    record["took_s"] = round(time.monotonic() - began, 1)
    return record


def judge_all(seeds, only, layout, dialect, sent, keep, json_file):
    """The records of some seeds, on servers of their own."""
    records = []
    for at in range(0, len(seeds), RUNS_PER_SERVER):
        folder = Path(keep or tempfile.mkdtemp(prefix="truth-"))
        folder.mkdir(parents=True, exist_ok=True)
        server = Server(folder / "data")
        try:
            for seed in seeds[at : at + RUNS_PER_SERVER]:
                try:
                    records.append(judge(server, seed, only, layout, dialect, sent))
                except DoesNotFit as reason:
                    print(reason, file=sys.stderr)
                    continue
                print(line(records[-1]), file=sys.stderr, flush=True)
                if json_file:
                    with json_file.open("a") as file:
                        file.write(json.dumps(records[-1]) + "\n")
        finally:
            server.stop()
            if not keep:
                shutil.rmtree(folder)
    return records


# --- The table ---------------------------------------------------------------------------------------------------------------


def size(record):
    return next(name for least, name in SIZES if record["share"] >= least)


def line(record):
    told = record["said"][0] if record["said"] else "-"
    told = told if isinstance(told, str) else f"{told[0]} {told[2]} s: {told[3]}"
    verdict = record.get("verdict") or ("accused" if record["accused"] else "clean")
    broken = [name for name, held in record["checks"].items() if not held]
    return (
        f"{record['seed']:6} {record['cause']:24} {record['share']:5.0%} {record['layout']:13} {record['dialect']:6} {verdict:8}"
        f" true {record['true_cost_s']:6.1f} s, said {told} {'NOT: ' + ', '.join(broken) if broken else ''} {record['error'] or ''}"
    )


def percent(part, whole):
    return f"{part}/{whole} ({part / whole:.0%})" if whole else "-"


def table(records):
    """The confusion table, as text."""
    out = []
    planted = [r for r in records if r["cause"] != CLEAN]
    clean = [r for r in records if r["cause"] == CLEAN]

    def row(label, some):
        count = Counter(r["verdict"] for r in some)
        priced = [r["cost_s"] / r["true_cost_s"] for r in some if r["verdict"] == "first" and r["true_cost_s"] > 0]
        within = sum(0.8 <= ratio <= 1.2 for ratio in priced)
        middle = f"{median(priced):.2f}" if priced else ""
        cells = [f"{count[v]:5}" for v in ("first", "near", "wrong", "nothing")]
        return f"{label:34} {len(some):5} {' '.join(cells)}   {f'{within}/{len(priced)}' if priced else '':>7} {middle:>6}"

    large, middling = ([r for r in planted if size(r) == name] for _, name in SIZES[:2])
    said = lambda some, verdict: percent(sum(r["verdict"] == verdict for r in some), len(some))
    priced = [r["cost_s"] / r["true_cost_s"] for r in large + middling if r["verdict"] == "first"]
    out += [
        f"{len(records)} runs",
        f"  cost >= 30 %: named first      {said(large, 'first'):>16}   aim 90 %",
        f"  cost >= 30 %: wrong first      {said(large, 'wrong'):>16}   aim at most 3 %",
        f"  cost 15-30 %: named first      {said(middling, 'first'):>16}   aim 60 %",
        f"  clean runs: nothing accused    {percent(sum(not r['accused'] for r in clean), len(clean)):>16}   aim 98 %",
        f"  cost_s within 20 %             {percent(sum(0.8 <= ratio <= 1.2 for ratio in priced), len(priced)):>16}   aim 80 %",
        "",
    ]
    head = f"{'':34} {'runs':>5} first  near wrong nothing  cost within 20%, median ratio"
    out += ["By effect size", head] + [row(name, [r for r in planted if size(r) == name]) for _, name in SIZES]
    for title, key in (("By layout", lambda r: r["layout"]), ("By dialect", lambda r: r["dialect"]), ("By cause", lambda r: r["cause"])):
        out += ["", title, head]
        for value in sorted({key(r) for r in planted}):
            for _, name in SIZES:
                some = [r for r in planted if key(r) == value and size(r) == name]
                if some:
                    out.append(row(f"{value}, {name}", some))
    out += ["", "By mode, >=30% and 15-30%", head]
    for label, stale in (("synchronous", (0,)), ("asynchronous", (1, 2))):
        out.append(row(label, [r for r in planted if r["notes"]["staleness"] in stale and r["share"] >= 0.15]))
    out += ["", "Said first instead (15% and more)"]
    instead = Counter((r["cause"], r["said"][0][0] if r["said"] else "nothing") for r in planted if r["verdict"] != "first" and r["share"] >= 0.15)
    out += [f"  {cause:26} {said:20} {count}" for (cause, said), count in sorted(instead.items())]
    out += ["", f"Clean runs with a machine, tool or service accused: {percent(sum(bool(r['accused']) for r in clean), len(clean))}"]
    out += ["Exact:"]
    for name in ("phases add up", "path adds up", "diff adds up", "wall is true", "phases are true"):
        some = [r for r in records if name in r["checks"]]
        out.append(f"  {name:18} {percent(sum(r['checks'][name] for r in some), len(some))}")
    out.append(f"No answer: {percent(sum(bool(r['error']) for r in records), len(records))}")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:60", help="FROM:TO, without TO, or a list with commas")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=[*CAUSES, CLEAN], help="plant this cause in every run")
    parser.add_argument("--layout", choices=LAYOUTS)
    parser.add_argument("--dialect", choices=DIALECTS)
    parser.add_argument("--json", type=Path, help="write the records there, one per line")
    parser.add_argument("--keep", type=Path, help="leave the data folder there (for one run)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON", help="a setting of `emit.Emitter`, such as step_key='\"rl.step\"' or lost=0")
    options = parser.parse_args()
    sent = {name: json.loads(value) for name, value in (setting.split("=", 1) for setting in options.set)}
    if ":" in options.seeds:
        first, last = map(int, options.seeds.split(":"))
        seeds = list(range(first, last))
    else:
        seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.keep and len(seeds) > 1:
        parser.error("--keep takes one run, as in --seeds 12:13")
    parts = [seeds[job :: options.jobs] for job in range(options.jobs)]
    settings = (options.only, options.layout, options.dialect, sent, options.keep, options.json)
    if options.json:
        options.json.unlink(missing_ok=True)
    if options.jobs == 1:
        records = judge_all(seeds, *settings)
    else:
        with ProcessPoolExecutor(options.jobs) as pool:
            records = [r for some in pool.map(judge_all, parts, *([s] * options.jobs for s in settings)) for r in some]
    records.sort(key=lambda r: r["seed"])
    print(table(records))


if __name__ == "__main__":
    main()
