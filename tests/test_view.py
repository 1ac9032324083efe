"""`rollscope view`, `import` of dumps and `export html`: what a person does who has a dump and nothing else."""

import gzip
import json
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
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


def from_ascii(text: bytes) -> bytes:
    """Seven bits a character; `ui/src/data/ascii.ts` tells it."""
    plain = re.sub(rb"\x1b(.)", lambda m: bytes([m[1][0] - 64]), text, flags=re.S)
    bits = "".join(f"{c:07b}" for c in plain)
    return bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits) - 7, 8))


def blocks(page: Path):
    found = re.findall(rb'<script type="application/octet-stream" id="rs-([^"]+)">([^<]*)</script>', page.read_bytes())
    return {name.decode(): gzip.decompress(from_ascii(body)) for name, body in found}


def close(ours, theirs, at=""):
    """Equal item by item; times to a microsecond."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), at
        for key in theirs:
            close(ours[key], theirs[key], f"{at}.{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), at
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
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
    assert {window["timeline"], window["samples"], *window["attrs"], *window["rest"], *window["conversations"], *window["words"], in_run["steps"], "runs"} <= found.keys()
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
        # One dump has one thing to show.
        assert second.url.endswith("/timeline?step=0"), second.url
        base = second.url.split("/#")[0]
        [only] = requests.get(base + "/api/v1/runs", timeout=10).json()["runs"]
        assert only["samples"] == 8


def words(block: bytes):
    """Texts out of numbers of words; `crates/formats/src/export/html/words.rs` tells it."""
    at = 12
    texts, tokens, distinct = struct.unpack_from("<III", block)

    def numbers(n):
        nonlocal at
        planes = [block[at + k * n:at + (k + 1) * n] for k in range(4)]
        at += 4 * n
        return [a | b << 8 | c << 16 | d << 24 for a, b, c, d in zip(*planes, strict=True)]
    counts, lengths = numbers(texts), numbers(distinct)
    known = []
    for length in lengths:
        known.append(block[at:at + length])
        at += length
    codes = iter(numbers(tokens))
    assert at == len(block)
    is_word = re.compile(rb"[0-9A-Za-z\x80-\xff]").match
    for count in counts:
        text, after_word = b"", False
        for token in (known[next(codes)] for _ in range(count)):
            text += b" " + token if after_word and is_word(token) else token
            after_word = is_word(token)
        yield text.decode()


def differences(timeline: pa.Table, name: str):
    """Numbers of the timeline in a page: bytes in columns of their own, the sign in the lowest bit."""
    planes = [timeline[f"{name}:{k}"].to_pylist() for k in range(8) if f"{name}:{k}" in timeline.column_names]
    for row in zip(*planes, strict=True):
        folded = sum(byte << 8 * k for k, byte in enumerate(row))
        yield folded >> 1 ^ -(folded & 1)


@pytest.mark.parametrize("name", ["small", "odd_traces", "legacy", "tensors"])
def test_the_page_holds_what_the_server_tells(name, tmp_path):
    def arrow(content):
        return pa.ipc.open_stream(content).read_all()
    with Viewing(SLIME / f"{name}.pt", "--out", tmp_path, "--run", "r") as viewing:
        base = viewing.url.split("/#")[0]
        step = requests.get(f"{base}/api/v1/runs/r/steps", timeout=10).json()["steps"][0]["step"]
        served = arrow(requests.get(f"{base}/api/v1/runs/r/timeline?step={step}", timeout=10).content)
        def asked(query):
            return arrow(requests.post(f"{base}/api/v1/sql", json={"query": query, "format": "arrow"}, timeout=10).content).to_pylist()
        said = asked("select id, messages from conversations order by id")
        attrs = asked("select span_id, start_attrs, end_attrs from spans")
    found = blocks(tmp_path / f"{name}.trace_timeline_viewer.html")
    [window] = json.loads(found["manifest"])["per_run"][0]["windows"]

    # Bars: when, in what lane, under which parent. A row that was made up has no id; its place among its parent's is its own.
    thin = arrow(found[window["timeline"]])
    ends, starts, before = [], [], 0
    for gap, length in zip(differences(thin, "start"), differences(thin, "end"), strict=True):
        starts.append(before + gap)
        before += gap + length
        ends.append(before)
    parents = [None if up == 0 else row - up for row, up in enumerate(differences(thin, "parent"))]

    def bars(table, starts, ends, parents):
        ids = table["span_id"].to_pylist()
        lanes, names = table["lane"].to_pylist(), table["name"].to_pylist()
        return sorted((ids[i], names[i], lanes[i], round(starts[i]), round(ends[i]), ids[p] if (p := parents[i]) is not None else b"") for i in range(len(ids)))
    theirs = [None if p < 0 else p for p in served["parent"].to_pylist()]
    ns = {key: [ms * 1e6 for ms in served[key].to_pylist()] for key in ("start", "end")}
    assert bars(thin, starts, ends, parents) == bars(served, ns["start"], ns["end"], theirs)

    # Attributes, by way of the row that the bar came from.
    ours, first = {}, 0
    by_source, row = {}, -1
    for id, on in zip(thin["span_id"].to_pylist(), differences(thin, "source"), strict=True):
        row += on
        by_source[row] = id
    for attr_block, rest in zip(window["attrs"], window["rest"], strict=True):
        keyed = json.loads(found[attr_block])
        assert arrow(found[rest]).num_rows == len(keyed["rows"])
        met = [0] * len(keyed["shapes"])
        for i, k in enumerate(keyed["rows"]):
            shape, told = keyed["shapes"][k], {"start_attrs": {}, "end_attrs": {}}
            for (column, key), values in zip(shape["keys"], shape["values"], strict=True):
                told[column][key] = values[0] if len(values) == 1 else values[met[k]]
            met[k] += 1
            ours[by_source[first + i]] = told
        first += window["chunk_rows"]
    def parsed(text):
        try:
            return json.loads(text)
        except ValueError:
            return text
    assert ours == {s["span_id"]: {c: {k: parsed(v) for k, v in s[c]} for c in ("start_attrs", "end_attrs")} for s in attrs}

    # Conversations, word by word.
    ids = [id for block in window.get("conversations", []) for id in arrow(found[block])["id"].to_pylist()]
    texts = [text for block in window.get("words", []) for text in words(found[block])]
    assert sorted(zip(ids, texts, strict=True)) == [(c["id"], c["messages"]) for c in said]


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
    # What comes by way of SQL is as complete as what comes straight from a dump.
    for window in in_run["windows"]:
        keyed = [json.loads(found[block]) for block in window["attrs"]]
        keys = {key for block in keyed for shape in block["shapes"] for _, key in shape["keys"]}
        assert "completion_tokens" in keys
        [said] = [list(words(found[block])) for block in window["words"]]
        assert len(said) == 8 and all(json.loads(text)[0]["content"] for text in said)
    refused = run("export", "html", "--data", data, "--run", "absent", "-o", out, check=False)
    assert refused.returncode == 2 and "there is no run `absent`; the newest runs are: `demo`" in refused.stderr
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
    assert "no files of a known layout" in run("view", tmp_path, check=False).stderr


def repeated(part: bytes, times: int) -> bytes:
    """A dump in which one large value is remembered once and used again and again."""
    return b"\x80\x02}q\x00X\x07\x00\x00\x00samples](" + part + b"(" + b"h\x02" * 2000 + b"tq\x03" + b"h\x01h\x03R" * times + b"es."


TEXT = b"X\x00\x80\x00\x00" + b"a" * 0x8000 + b"q\x02"
NUMBERS = b"](" + b"K\x01" * 20_000 + b"eq\x02"


@pytest.mark.parametrize("pickle", [
    pytest.param(repeated(b"cpathlib\nPosixPath\nq\x01" + TEXT, 10_000), id="a path of one text"),
    pytest.param(b"\x80\x02}X\x07\x00\x00\x00samples](c__builtin__\nlist\nq\x01" + NUMBERS + b"h\x01h\x02\x85R" * 20_000 + b"es.",
                 id="copies of one list"),
    pytest.param(b"\x80\x02}X\x07\x00\x00\x00samples](c__builtin__\ndict\nq\x01](" + b"K\x01N\x86" * 20_000 + b"eq\x02"
                 + b"h\x01h\x02\x85R" * 20_000 + b"es.", id="copies of one dict"),
])
def test_a_small_dump_cannot_ask_for_much_memory(pickle, tmp_path):
    dump = tmp_path / "rollout_0.pt"
    with zipfile.ZipFile(dump, "w") as archive:
        archive.writestr("rollout_0/data.pkl", pickle)
        archive.writestr("rollout_0/version", "3\n")
    assert dump.stat().st_size < 300_000
    # From a small process of its own: what a child is told to have used at most begins with what its parent had.
    watch = "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); " \
            "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    viewed = subprocess.run([sys.executable, "-c", watch, BINARY, "view", dump, "--no-serve", "--out", tmp_path / "out"],
                            capture_output=True, text=True, timeout=120)
    code, kilobytes = map(int, viewed.stdout.split()[-2:])
    assert code in (0, 1) and "panicked" not in viewed.stderr, viewed.stderr
    assert kilobytes < 500_000, f"{kilobytes} kB for {dump.stat().st_size} bytes: {viewed.stderr}"
