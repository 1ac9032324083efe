"""Segments are plain Parquet: other tools read them without us."""

import duckdb
import polars
import pyarrow.parquet
import pytest

from conftest import FIXTURES, run, sql


def test_spans_are_read_by_others(tmp_path):
    """polars, DuckDB and pyarrow (what pandas uses) read every column of every table."""
    data = tmp_path / "data"
    run("demo", "--data", data, "--no-serve", "--steps", 2, "--samples", 16)
    run("import", "--data", data, FIXTURES / "slime" / "small.pt")
    for table in ("spans", "samples", "conversations", "metrics", "series", "runs", "tokens"):
        files = sorted(data.glob(f"{table}/*/*.parquet"))
        assert files, table
        for file in files:
            ours = pyarrow.parquet.read_table(file)
            metadata = pyarrow.parquet.read_metadata(file)
            assert polars.read_parquet(file).height == ours.num_rows
            assert len(duckdb.sql(f"select * from read_parquet('{file}')").fetchall()) == ours.num_rows
            ids = [c for g in range(metadata.num_row_groups) for c in columns(metadata.row_group(g))
                   if c.physical_type == "FIXED_LEN_BYTE_ARRAY"]
            assert not {e for c in ids for e in c.encodings} - {"PLAIN", "RLE", "RLE_DICTIONARY"}, file
    [file] = data.glob("tokens/*/*.parquet")
    ours = {t["sample_id"]: (t["ids"], t["logprobs"]) for t in sql(data, "select sample_id, ids, logprobs from tokens")}
    assert len(ours) == 8
    read = f"select sample_id, ids, logprobs from read_parquet('{file}')"
    for theirs in (polars.read_parquet(file).select("sample_id", "ids", "logprobs").rows(), duckdb.sql(read).fetchall()):
        assert {sample: ids for sample, ids, _ in theirs} == {sample: ids for sample, (ids, _) in ours.items()}
        # JSON writes a number of 32 bits with as many digits as tell it from others of 32 bits.
        assert all(logprobs == pytest.approx(ours[sample][1], rel=1e-6) for sample, _, logprobs in theirs)
    spans = polars.concat([polars.read_parquet(f) for f in data.glob("spans/*/*.parquet")])
    ids = {(t, s) for t, s in zip(spans["trace_id"].to_list(), spans["span_id"].to_list(), strict=True)}
    assert len(ids) == spans.height
    hexed = sql(data, "select hex(trace_id) as t, hex(span_id) as s from spans")
    assert {(bytes.fromhex(r["t"]), bytes.fromhex(r["s"])) for r in hexed} == ids


def columns(group):
    return [group.column(n) for n in range(group.num_columns)]
