"""OTLP files in and out."""

import gzip
import json

import pytest
import zstandard

from conftest import FIXTURES, run, sql


def spans_of(lines):
    """Every span with its resource and scope, by id, as plain JSON, in the form the specification gives."""
    found = {}
    for line in lines:
        if not line.strip():
            continue
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    span = {k: v for k, v in span.items() if v not in ([], {}, "", 0, None)}
                    code = span.get("status", {}).get("code")
                    if isinstance(code, str):
                        span["status"]["code"] = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}[code]
                    attributes = resource.get("resource", {}).get("attributes", [])
                    found[span["spanId"]] = (span, attributes, scope.get("scope", {}))
    return found


@pytest.mark.parametrize("fixture", ["roll/roll_traces.jsonl", "sglang/sglang_otel.jsonl", "sglang/crash_root_without_slices.jsonl"])
def test_what_was_imported_and_exported_again_is_equal(tmp_path, fixture):
    original = (FIXTURES / fixture).read_text()
    data = tmp_path / "data"
    wanted = spans_of(original.splitlines())
    told = run("import", FIXTURES / fixture, "--run", "my-run", "--data", data).stdout
    assert f"{len(wanted)} rows, {len(wanted)} new spans, 0 rejected" in told
    out = run("export", "otlp", "--run", "my-run", "--data", data).stdout
    got = spans_of(out.splitlines())
    assert got.keys() == wanted.keys()
    for span_id in wanted:
        assert got[span_id] == wanted[span_id]
    # Again: nothing is doubled.
    assert " 0 new" in run("import", FIXTURES / fixture, "--run", "my-run", "--data", data).stdout
    assert sql(data, "select run_id, count(*) as n from spans group by 1") == [{"run_id": "my-run", "n": len(wanted)}]


@pytest.mark.parametrize("pack", ["plain", "array", "gzip", "zstd"])
def test_every_packing_reads_the_same(tmp_path, pack):
    lines = (FIXTURES / "roll/roll_traces.jsonl").read_bytes()
    packed = {
        "plain": lines,
        "array": b"[" + b",\n".join(line for line in lines.splitlines() if line.strip()) + b"]",
        "gzip": gzip.compress(lines),
        "zstd": zstandard.compress(lines),
    }[pack]
    file = tmp_path / "traces"
    file.write_bytes(packed)
    run("import", file, "--data", tmp_path / "data")
    assert sql(tmp_path / "data", "select count(*) as n from spans") == [{"n": 36}]


def test_a_file_of_no_known_format_is_told_so(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("just some words")
    done = run("import", file, "--data", tmp_path / "data", check=False)
    assert done.returncode == 1 and "notes.txt" in done.stderr and "OTLP" in done.stderr


def test_a_damaged_line_is_named(tmp_path):
    file = tmp_path / "t.jsonl"
    good = (FIXTURES / "roll/roll_traces.jsonl").read_text().splitlines()[0]
    file.write_text(good + "\n" + good[:500] + "\n")
    done = run("import", file, "--data", tmp_path / "data")
    assert "1 rejected" in done.stdout and "line 2" in done.stdout, "the rest is imported, what is missing is said"
    assert sql(tmp_path / "data", "select count(*) as n from spans")[0]["n"] == len(spans_of([good]))


@pytest.mark.parametrize("format", ["table", "csv", "json", "arrow"])
def test_every_output_format(tmp_path, format):
    data = tmp_path / "data"
    run("import", FIXTURES / "roll/roll_traces.jsonl", "--data", data)
    import subprocess
    from conftest import BINARY
    query = "select name, count(*) as n, hex(min(trace_id)) as t from spans group by 1 order by 2 desc, 1"
    out = subprocess.run([BINARY, "sql", "--data", data, "--format", format, query], capture_output=True, check=True).stdout
    if format == "arrow":
        import pyarrow
        table = pyarrow.ipc.open_stream(out).read_all()
        names = table.column("name").to_pylist()
    elif format == "json":
        names = [row["name"] for row in json.loads(out)]
    elif format == "csv":
        import csv
        import io
        names = [row["name"] for row in csv.DictReader(io.StringIO(out.decode()))]
    else:
        assert "│" in out.decode()
        return
    assert "generate" in names and len(names) == len(set(names))
