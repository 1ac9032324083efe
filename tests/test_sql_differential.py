"""A few of the random queries that `make fuzz` asks in thousands."""

import pytest
from sql_differential import Differential, make_query


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    both = Differential(tmp_path_factory.mktemp("sql"))
    yield both
    both.stop()


def test_random_queries_are_answered_as_by_duckdb(both):
    wrong = {seed: problem for seed in range(40) if (problem := both.check(make_query(seed)))}
    assert wrong == {}
    assert both.counts["rows"] > 100 and both.counts["ours refused"] + both.counts["theirs refused"] == 0, both.refusals
