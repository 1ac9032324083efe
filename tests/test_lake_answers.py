"""What the page says of a lake whose queries run on workers is what it says of a folder."""

import pyarrow.ipc
import pytest
from conftest import FIXTURES, Server, wait_until
from lake import Lake, Seaweed

FILES = ["slime/small.pt", "slime/odd_traces.pt", "sglang/sglang_otel.jsonl", "roll/roll_traces.jsonl"]
SPREAD = "[query]\nspread_bytes = 1\n[server.alarms]\nenabled = false\n"


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lake")
    (folder / "seaweed").mkdir()
    weed = Seaweed(folder / "seaweed")
    lake = Lake("answers", folder, weed.env)
    yield lake
    lake.stop()
    weed.stop()


@pytest.fixture(scope="module")
def both(lake):
    """The same runs in a folder and in a lake; each has a server, and the lake two workers."""
    config = lake.folder / "spread.toml"
    config.write_text(SPREAD)
    for file in FILES:
        for data in (lake.folder / "data", lake.url):
            done = lake.run("import", FIXTURES / file, "--data", data, "--run", file.split("/")[1].split(".")[0])
            assert done.returncode == 0, done.stderr
    alone = Server(lake.folder / "data", "--config", str(config))
    for _ in range(2):
        lake.worker()
    spread = lake.node("ask", "--role", "query", "--config", str(config))
    explain = "explain select name, count(distinct span_id) from spans group by name"
    wait_until(lambda: "DistributedExec" in str(spread.sql(explain)), 60)
    yield alone, spread
    alone.stop()


def paths(server):
    """Everything that views of a run ask for."""
    for run in ("small", "odd_traces", "sglang_otel", "roll_traces"):
        yield f"/api/v1/runs/{run}/steps"
        yield f"/api/v1/runs/{run}/findings"
        yield f"/api/v1/runs/{run}/metrics"
        yield f"/api/v1/traces?run={run}&limit=50"
        yield f"/api/v1/conversations?run={run}&limit=50"
        steps = [step["step"] for step in server.get(f"/api/v1/runs/{run}/steps").json()["steps"]]
        for step in steps[:3]:
            yield f"/api/v1/runs/{run}/steps/{step}/report"
            yield f"/api/v1/runs/{run}/samples?step={step}"
            yield f"/api/v1/runs/{run}/timeline?step={step}"
        if len(steps) > 1:
            yield f"/api/v1/runs/{run}/diff?step={steps[0]}&with={steps[1]}"


def test_every_answer_is_the_same_on_workers(both):
    alone, spread = both
    compared = 0
    for path in paths(alone):
        mine, theirs = alone.get(path), spread.get(path)
        assert mine.status_code == theirs.status_code, (path, mine.text[:500], theirs.text[:500])
        kind = mine.headers["content-type"]
        if "json" in kind:
            assert without_places(mine.json()) == without_places(theirs.json()), path
        else:
            assert rows(mine) == rows(theirs), path
        compared += mine.ok
    assert compared >= 30
    nodes = spread.get("/api/v1/nodes").json()
    assert nodes["queries_on_workers"] > 20, nodes
    assert nodes["queries_again"] == 0, nodes


def rows(answer):
    """Rows of an Arrow stream, in an order of their own: that of rows without one is up to the engine."""
    return sorted(map(repr, pyarrow.ipc.open_stream(answer.content).read_all().to_pylist()))


def without_places(answer):
    """What depends on where rows are, or on when they were asked for: sizes on disk, versions, times that answers took."""
    drop = {"bytes", "disk_bytes", "log_bytes", "version", "took_ms", "took_s", "elapsed_ms", "next", "index"}
    if isinstance(answer, dict):
        return {key: without_places(value) for key, value in answer.items() if key not in drop}
    if isinstance(answer, list):
        return [without_places(value) for value in answer]
    return answer


def test_the_nodes_are_listed(both):
    alone, spread = both
    assert alone.get("/api/v1/nodes").json()["nodes"] == []
    wait_until(lambda: all(node["load"] for node in spread.get("/api/v1/nodes").json()["nodes"]), 30)
    nodes = spread.get("/api/v1/nodes").json()["nodes"]
    assert sorted(node["role"] for node in nodes) == ["query", "worker", "worker"]
    assert [node["name"] for node in nodes if node["is_self"]] == ["ask"]
    assert all(node["is_there"] and node["load"]["memory_bytes"] > 1 << 20 for node in nodes)
    assert all((node["worker"] is not None) == (node["role"] == "worker") for node in nodes)
    refused = spread.get("/api/v1/nodes?nme=x")
    assert refused.status_code == 400 and "nme" in refused.json()["detail"]
