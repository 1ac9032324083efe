"""`rollscope view`, `import` of dumps and `export html`: what a person does who has a dump and nothing else."""

import base64
import gzip
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import zipfile
from pathlib import Path

import pytest
import requests

from conftest import BINARY, FIXTURES, run, sql, wait_until

SLIME = FIXTURES / "slime"
WITH_CACHE = sorted(p.name.removesuffix(".trace_timeline_cache.json") for p in SLIME.glob("*.trace_timeline_cache.json"))


def strict(text):
    """JSON as the standard has it: no NaN, no Infinity."""
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")
    return json.loads(text, parse_constant=refuse)


def blocks(page: Path):
    text = page.read_text()
    found = re.findall(r'<script type="application/octet-stream" id="rs-([^"]+)">([A-Za-z0-9+/=\s]*)</script>', text)
    return {name: gzip.decompress(base64.b64decode(body)) for name, body in found}


def close(ours, theirs, at=""):
    """Equal item by item; times to a microsecond."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), at
        for key in theirs:
            close(ours[key], theirs[key], f"{at}.{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), at
        for i, (a, b) in enumerate(zip(ours, theirs)):
            close(a, b, f"{at}[{i}]")
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=1.1e-6), at
    else:
        assert ours == theirs, at


@pytest.mark.parametrize("name", WITH_CACHE)
def test_the_cache_is_the_one_slimes_viewer_makes(name, tmp_path):
    run("view", SLIME / f"{name}.pt", "--no-serve", "--out", tmp_path)
    ours = strict((tmp_path / f"{name}.trace_timeline_cache.json").read_text())
    theirs = json.loads((SLIME / f"{name}.trace_timeline_cache.json").read_text())
    for either in (ours, theirs):
        either.pop("pt_path"), either.pop("generated_at")
    close(ours, theirs)


def test_where_slimes_viewer_fails_ours_is_valid(tmp_path):
    run("view", SLIME / "breaks_nan.pt", "--no-serve", "--out", tmp_path)
    cache = strict((tmp_path / "breaks_nan.trace_timeline_cache.json").read_text())
    assert cache["rows"]


def test_the_page_holds_the_data_and_the_summary_says_what_is_in_it(tmp_path):
    dump = shutil.copy(SLIME / "small.pt", tmp_path / "rollout_3.pt")
    done = run("view", dump, "--no-serve")
    assert re.search(r"8 samples, \d+ spans \(2 open\), \d+ instants, 3 orphan ends, 2 attempts, 20\d\d-", done.stdout), done.stdout
    page = tmp_path / "rollout_3.trace_timeline_viewer.html"
    found = blocks(page)
    manifest = json.loads(found["manifest"])
    [in_run] = manifest["per_run"]
    assert in_run["run_id"] == tmp_path.name
    [window] = in_run["windows"]
    assert {window["timeline"], window["samples"], *window["attrs"], in_run["steps"], "runs"} <= found.keys()
    [step] = json.loads(found[in_run["steps"]])["steps"]
    cache = json.loads((tmp_path / "rollout_3.trace_timeline_cache.json").read_text())
    assert step["samples"] == 8 and step["open"] == 2
    # The old style's lanes are drawn by the page, and are items of their own only in slime's cache.
    virtual = sum(":pd:" in str(i["span_id"]) for r in cache["rows"] for i in r["items"])
    assert step["spans"] == sum(len(r["items"]) for r in cache["rows"]) - virtual
    assert not list(tmp_path.glob("*.partial*"))


def test_an_unchanged_dump_is_not_read_again(tmp_path):
    dump = Path(shutil.copy(SLIME / "small.pt", tmp_path / "rollout_3.pt"))
    page = tmp_path / "rollout_3.trace_timeline_viewer.html"
    first = run("view", dump, "--no-serve").stdout
    made = page.stat().st_mtime_ns
    second = run("view", dump, "--no-serve").stdout
    assert "up to date" in second and page.stat().st_mtime_ns == made
    assert first.split(", ")[1:8] == second.split(", ")[1:8], "the summary is the same without reading"
    run("view", dump, "--no-serve", "--rebuild")
    rebuilt = page.stat().st_mtime_ns
    assert rebuilt != made
    os.utime(dump)
    assert "up to date" not in run("view", dump, "--no-serve").stdout
    # A cache that is missing or half written by something else is made again.
    (tmp_path / "rollout_3.trace_timeline_cache.json").unlink()
    assert "up to date" not in run("view", dump, "--no-serve").stdout
    page.write_text("half a pa")
    assert "up to date" not in run("view", dump, "--no-serve").stdout
    assert "manifest" in blocks(page)


def folder_of_dumps(tmp_path):
    dumps = tmp_path / "my-run"
    dumps.mkdir()
    for name in ("rollout_2.pt", "rollout_10.pt", "rollout_eval_10.pt"):
        shutil.copy(SLIME / "bare_list.pt", dumps / name)
    return dumps


@pytest.mark.parametrize("how", ["pattern", "folder"])
def test_many_dumps_are_one_run_with_many_steps(tmp_path, how):
    dumps = folder_of_dumps(tmp_path)
    named = dumps if how == "folder" else f"{dumps}/rollout_*.pt"
    done = run("view", named, "--no-serve")
    assert done.stdout.index("rollout_2.pt") < done.stdout.index("rollout_10.pt")
    assert len(list(dumps.glob("*.trace_timeline_cache.json"))) == 3
    joint = blocks(dumps / "my-run.trace_timeline_viewer.html")
    [in_run] = json.loads(joint["manifest"])["per_run"]
    assert [w["step"] for w in in_run["windows"]] == [2, 10, 10]
    assert {s["step"] for s in json.loads(joint[in_run["steps"]])["steps"]} == {2, 10}
    assert "up to date" in run("view", named, "--no-serve").stdout


def test_import_again_and_again_doubles_nothing(tmp_path):
    dumps = folder_of_dumps(tmp_path)
    data = tmp_path / "data"
    run("import", f"{dumps}/rollout_*.pt", "--run", "mine", "--data", data)
    count = "select (select count(*) from spans) as spans, (select count(*) from samples) as samples, (select count(*) from conversations) as talks"
    before = sql(data, count)
    again = run("import", dumps, "--run", "mine", "--data", data).stdout
    assert again.count(" 0 new spans") == 3, again
    assert sql(data, count) == before
    assert sql(data, "select distinct run_id, step, split from samples order by 2, 3") == [
        {"run_id": "mine", "step": 2, "split": "train"},
        {"run_id": "mine", "step": 10, "split": "eval"},
        {"run_id": "mine", "step": 10, "split": "train"}]
    [known] = sql(data, "select started_ns, ended_ns from runs")
    [spanned] = sql(data, "select min(start_ns) as started_ns, max(end_ns) as ended_ns from spans")
    assert known == spanned


class Viewing:
    """`rollscope view`, serving."""

    def __init__(self, *args):
        self.process = subprocess.Popen([BINARY, "view", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if line.startswith("rollscope is at"):
                self.url = line.split()[-1]
                return
        raise AssertionError(self.process.stderr.read())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(timeout=30) == 0
        self.process.stdout.close(), self.process.stderr.close()


def test_it_serves_what_is_in_the_dump(tmp_path):
    dumps = folder_of_dumps(tmp_path)
    with Viewing(dumps) as first, Viewing(SLIME / "small.pt", "--out", tmp_path) as second:
        base = first.url.split("/#")[0]
        assert first.url.endswith("/#/run/my-run")
        assert "<div id=\"app\"" in requests.get(base, timeout=10).text
        wait_until(lambda: len(requests.get(base + "/api/v1/runs/my-run/steps", timeout=10).json()["steps"]) == 2)
        base = second.url.split("/#")[0]
        [only] = requests.get(base + "/api/v1/runs", timeout=10).json()["runs"]
        assert only["samples"] == 8


def test_otlp_files_are_shown_too(tmp_path):
    traces = shutil.copy(FIXTURES / "sglang" / "sglang_otel.jsonl", tmp_path / "traces.jsonl")
    done = run("view", traces, "--no-serve")
    assert "192" in done.stdout, done.stdout
    manifest = json.loads(blocks(tmp_path / "traces.trace_timeline_viewer.html")["manifest"])
    assert manifest["per_run"]


def test_a_run_of_a_store_becomes_a_file(tmp_path):
    data = tmp_path / "data"
    run("demo", "--no-serve", "--data", data, "--steps", "3", "--samples", "8")
    out = tmp_path / "demo.html"
    run("export", "html", "--data", data, "--run", "demo", "-o", out)
    found = blocks(out)
    [in_run] = json.loads(found["manifest"])["per_run"]
    steps = json.loads(found[in_run["steps"]])["steps"]
    assert [s["step"] for s in steps] == [0, 1, 2]
    assert all(s["phases"] for s in steps)
    refused = run("export", "html", "--data", data, "--run", "absent", "-o", out, check=False)
    assert refused.returncode == 2 and "there is no run `absent`; the newest are: `demo`" in refused.stderr
    refused = run("export", "html", "--data", data, "--step", "77", "-o", out, check=False)
    assert refused.returncode == 1 and "no step 77" in refused.stderr


class Evil:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_nothing_in_a_dump_is_executed(tmp_path):
    proof = tmp_path / "executed"
    dump = tmp_path / "rollout_0.pt"
    with zipfile.ZipFile(dump, "w") as archive:
        sample = {"index": 0, "prompt": "p", "response": "r", "metadata": {"x": Evil(f"touch {proof}")},
                  "trace": {"trace_id": "a" * 32, "events": [{"type": "event", "name": "e", "ts": 1.0, "attrs": {"y": Evil(f"touch {proof}")}}]}}
        archive.writestr("rollout_0/data.pkl", pickle.dumps({"rollout_id": 0, "samples": [sample]}, protocol=2))
        archive.writestr("rollout_0/version", "3\n")
    done = run("view", dump, "--no-serve")
    assert "1 samples" in done.stdout
    assert not proof.exists()
    assert "os" in (tmp_path / "rollout_0.trace_timeline_cache.json").read_text(), "what it was is remembered"


@pytest.mark.parametrize("content", [b"", b"hello world\n" * 100, b"PK\x03\x04" + b"\0" * 200, b"\x80\x02]q\x00.", os.urandom(5000)])
def test_a_file_that_is_no_dump_gets_one_sentence(tmp_path, content):
    file = tmp_path / "rollout_0.pt"
    file.write_bytes(content)
    done = run("view", file, "--no-serve", check=False)
    # An empty list is a dump without samples.
    if content == b"\x80\x02]q\x00.":
        return
    assert done.returncode == 1
    assert done.stderr.startswith("rollscope: ") and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "rollout_0.pt" in done.stderr
    assert not list(tmp_path.glob("*trace_timeline*"))


def test_usage_errors(tmp_path):
    assert run("view", check=False).returncode == 2
    assert run("view", tmp_path / "absent.pt", check=False).returncode == 1
    assert "no such file" in run("view", tmp_path / "absent.pt", check=False).stderr
    assert "no dumps" in run("view", tmp_path, check=False).stderr
