"""What the nodes of a lake do for each other: one of them tells the sinks of alarms, silences hold everywhere, and nobody reads the texts of
conversations that another one has indexed."""

import json

import pytest
import requests
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from conftest import wait_until
from lake import Lake, Seaweed
from otlp import records
from test_alarms import Page, Receiver, alarms, configured, states

HIGH = "groups:\n- name: g\n  rules:\n  - alert: High\n    expr: queue > 5\n"
START = 1_790_000_000_000_000_000


@pytest.fixture(scope="module")
def weed(tmp_path_factory):
    weed = Seaweed(tmp_path_factory.mktemp("seaweed"))
    yield weed
    weed.stop()


@pytest.fixture
def lake(weed, tmp_path, request):
    lake = Lake(request.node.name, tmp_path, weed.env)
    yield lake
    lake.stop()


@pytest.fixture
def page():
    page = Page("queue 1\n")
    yield page
    page.close()


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_one_node_tells_what_all_see(weed, lake, tmp_path, page, receiver):
    flags = configured(tmp_path, f'[[server.alarms.webhook]]\nurl = "{receiver.url}"\n', HIGH)
    page.page = "queue 9\n"
    a, b = [lake.node(name, *flags, "--scrape", page.url + "@1s") for name in "ab"]
    wait_until(lambda: states(a) == states(b) == {"High": "firing"}, 30)
    wait_until(lambda: receiver.statuses() == ["firing"], 30)
    before = alarms(b)["rounds"]
    wait_until(lambda: alarms(b)["rounds"] > before + 6, 30)
    assert receiver.statuses() == ["firing"], "the other node does not say it again"
    assert [alarms(node)["speaker"] for node in (a, b)] == ["a", "a"]

    # A silence that was made at one node holds at all.
    made = b.post("/api/v1/alarms/silences", json={"selector": "High", "duration": "2h", "comment": "known"}).json()
    wait_until(lambda: [s["id"] for s in alarms(a)["silences"]] == [made["id"]])
    assert alarms(a)["alarms"][0]["silenced_by"] == made["id"] and alarms(a)["firing"] == 0
    assert a.delete(f"/api/v1/alarms/silences/{made['id']}").status_code == 204
    wait_until(lambda: alarms(b)["silences"] == [] and alarms(b)["firing"] == 1)
    short = b.post("/api/v1/alarms/silences", json={"selector": "Other", "duration": "2s"}).json()
    path = f"{lake.prefix}/alarms/silences/{short['id']}.json"
    wait_until(lambda: weed.get(path) is None, 30)

    # The next one takes over, and knows what was told.
    a.kill()
    wait_until(lambda: alarms(b)["speaker"] == "b", 90)
    before = alarms(b)["rounds"]
    wait_until(lambda: alarms(b)["rounds"] > before + 4, 30)
    assert receiver.statuses() == ["firing"]
    page.page = "queue 1\n"
    wait_until(lambda: receiver.statuses() == ["firing", "resolved"], 60)


def say(server, run, numbers):
    """Conversations, each with a word of its own."""
    said = lambda n: json.dumps([{"role": "user", "content": f"say wort{n}x to the quick fox"}, {"role": "assistant", "content": f"wort{n}x"}])
    each = [("rollscope.conversation", AnyValue(string_value=said(n)), {"rollscope.id": f"talk{n}", "rollscope.key": "k", "rl.step": n % 7}, START + n)
            for n in numbers]
    body = records(run, *each).SerializeToString()
    answer = requests.post(server.http + "/v1/logs", data=body, headers={"content-type": "application/x-protobuf"}, timeout=30)
    assert answer.ok and not answer.content, answer.text


def found(server, **params):
    answer = server.get("/api/v1/conversations", params={"sort": "time", **params})
    assert answer.ok, answer.text
    return answer.json()


LOUD = {"ROLLSCOPE_LOG": "info,rollscope_search=debug"}


def test_what_one_node_has_indexed_others_take_over(weed, lake, tmp_path):
    (tmp_path / "soon.toml").write_text("[store]\nflush_age_s = 1\ndelete_grace_s = 0\n")
    flags = ["--config", str(tmp_path / "soon.toml")]
    log = lambda name: (tmp_path / f"{name}.log").read_text()
    files = lambda end: sorted(path for path in weed.find(f"{lake.prefix}/conversations") if path.endswith(end))
    a = lake.node("a", *flags, env=LOUD)
    say(a, "run", range(500))
    # A few more are not worth a file of their own.
    wait_until(lambda: len(files(".index.tar")) == 1, 60)
    say(a, "run", range(500, 520))
    wait_until(lambda: len(files(".parquet")) > 1, 60)
    wait_until(lambda: found(a, limit=0)["total"] == 520)

    # A node that comes later, and a command on another machine.
    b = lake.node("b", *flags, env=LOUD)
    wait_until(lambda: found(b, limit=0)["total"] == 520, 30)
    assert "took the split of a segment" in log("b")
    asked = [{"limit": 1000, "facets": "step,role"}, {"search": "wort77x"}, {"search": '"quick fox"', "limit": 3}, {"search": "wort510x"}]
    for params in asked:
        assert found(b, **params) == found(a, **params), params
    assert found(b, search="wort77x")["total"] == 1
    done = lake.run("conversations", "--data", lake.url, "wort123x", env=lake.env)
    assert done.returncode == 0 and "wort123x" in done.stdout and "1 of 1" in done.stdout, done.stderr

    # One that is damaged, or of a version that nobody knows, is not needed.
    (split,) = files(".index.tar")
    whole = weed.get(split)
    weed.put(split, whole[:len(whole) // 2] + b"?" + whole[len(whole) // 2 + 1:])
    c = lake.node("c", *flags, env=LOUD)
    wait_until(lambda: found(c, limit=0)["total"] == 520, 30)
    assert "its split cannot be used" in log("c") and found(c, search="wort77x")["total"] == 1

    # It goes with its segment, and others forget what was deleted.
    assert a.delete("/api/v1/runs/run").status_code in (200, 204)
    wait_until(lambda: files(".index.tar") == [], 60)
    for node in (a, b, c):
        wait_until(lambda: found(node, limit=0)["total"] == 0, 60)
