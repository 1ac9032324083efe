"""Conversations through the API: found, sorted, paged and counted as a look at every one of them would, while writing goes on."""

import json
import random
import shutil
import threading
import time
from urllib.parse import quote

import requests
from conftest import Server, run, wait_until
from otlp import attribute, request, span

WORDS = ("loss gradient memory leak kernel tensor batch reward policy token cache queue prefill decode rollout trainer "
         "worker timeout retry allocation straße 世界 数据 naïve").split()
RUN = "talk/1"


class Talk:
    """One conversation as it is sent, and as brute force sees it."""

    def __init__(self, number, dice):
        self.number = number
        self.step = dice.randrange(8)
        self.reward = dice.choice([None, 0.0, 0.25, 0.5, 0.75, 1.0])
        self.temperature = round(dice.random(), 3)
        self.said = " ".join(dice.choices(WORDS, k=dice.randrange(3, 30)))
        self.asked = " ".join(dice.choices(WORDS, k=5))
        self.tool = dice.choice([None, "bash", "search"])
        self.error = dice.random() < 0.2
        self.truncated = dice.random() < 0.3
        self.messages = [{"role": "user", "content": self.asked}]
        if self.tool:
            call = {"id": f"c{number}", "type": "function", "function": {"name": self.tool, "arguments": "{\"q\": \"half"}}
            self.messages += [{"role": "assistant", "content": "", "tool_calls": [call]},
                              {"role": "tool", "tool_call_id": f"c{number}", "content": "CUDA out of memory" if self.error else "fine"}]
        self.messages.append({"role": "assistant", "content": self.said})
        self.id = f"{RUN}/{self.trace.hex()}/{(number + 1).to_bytes(8, 'big').hex()}"

    @property
    def trace(self):
        return (self.number // 4 + 1).to_bytes(16, "big")

    def span(self):
        start = 1_790_000_000_000_000_000 + self.number * 1_000_000
        attributes = [attribute("gen_ai.operation.name", "chat"), attribute("rl.step", self.step),
                      attribute("rl.sample.id", f"s{self.number}"), attribute("gen_ai.request.temperature", self.temperature),
                      attribute("gen_ai.input.messages", json.dumps(self.messages[:-1])),
                      attribute("gen_ai.output.messages", json.dumps(self.messages[-1:]))]
        if self.reward is not None:
            attributes.append(attribute("rl.reward", self.reward))
        if self.truncated:
            attributes.append(attribute("gen_ai.completion.0.finish_reason", "length"))
        return span(self.number, trace_id=self.trace, attributes=attributes, start_time_unix_nano=start,
                    end_time_unix_nano=start + 500_000)


def send(server, talks):
    body = request([t.span() for t in talks], rl__run__id=RUN).SerializeToString()
    answer = requests.post(server.http + "/v1/traces", data=body, headers={"content-type": "application/x-protobuf"}, timeout=30)
    assert answer.ok, answer.text


def ask(server, **params):
    answer = server.get("/api/v1/conversations", params=params)
    assert answer.ok, answer.text
    return answer.json()


def total(server, **params):
    return ask(server, limit=0, **params)["total"]


def settled(server, count):
    wait_until(lambda: total(server) == count)


def ids(answer):
    return [c["id"] for c in answer["conversations"]]


def every_page(server, **params):
    found, cursor = [], None
    while True:
        answer = ask(server, **params, **({"cursor": cursor} if cursor else {}))
        found += answer["conversations"]
        cursor = answer["next"]
        if not cursor:
            return found


def test_search_sort_pages_and_facets_agree_with_brute_force_while_writing_goes_on(server):
    dice = random.Random(6)
    talks = [Talk(n, dice) for n in range(400)]
    send(server, talks)
    settled(server, len(talks))
    # Others keep writing, into another run: nothing of it may show.
    stop = threading.Event()

    def disturb():
        n = 10_000
        while not stop.is_set():
            other = [Talk(n + i, random.Random(n + i)) for i in range(20)]
            body = request([t.span() for t in other], rl__run__id="other").SerializeToString()
            requests.post(server.http + "/v1/traces", data=body, headers={"content-type": "application/x-protobuf"}, timeout=30)
            n += 20
            time.sleep(0.05)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        check(server, talks)
    finally:
        stop.set()
        thread.join()
    assert total(server, run="other") > 0


def check(server, talks):
    text = lambda t: f"{t.asked} {t.said}".split()
    cases = {
        "memory": lambda t: "memory" in text(t) or (t.tool and t.error),
        "\"memory leak\"": lambda t: "memory leak" in t.asked or "memory leak" in t.said,
        "role:user memory": lambda t: "memory" in t.asked.split(),
        "role:tool \"out of memory\"": lambda t: t.tool and t.error,
        "alloc*": lambda t: "allocation" in text(t),
        "gradeint~2": lambda t: "gradient" in text(t),
        "-memory": lambda t: not ("memory" in text(t) or (t.tool and t.error)),
        "kernel OR tensor": lambda t: "kernel" in text(t) or "tensor" in text(t),
        "世界": lambda t: "世界" in text(t),
        "世": lambda t: "世界" in text(t),
        "STRASSE": lambda t: False,
        "straße": lambda t: "straße" in text(t),
        "reward:<0.5": lambda t: t.reward is not None and t.reward < 0.5,
        "reward:>=0.25 reward:<=0.75": lambda t: t.reward is not None and 0.25 <= t.reward <= 0.75,
        "step:2..4": lambda t: 2 <= t.step <= 4,
        "step:<1.5": lambda t: t.step < 1.5,
        "tool:bash,search": lambda t: t.tool,
        "tool:bash step:3": lambda t: t.tool == "bash" and t.step == 3,
        "status:truncated": lambda t: t.truncated,
        "metadata.temperature:>0.5": lambda t: t.temperature > 0.5,
        "sample:s17": lambda t: t.number == 17,
        "contains:\"eak ker\"": lambda t: "eak ker" in t.asked or "eak ker" in t.said,
        "/loss (gradient|memory)/": lambda t: any(f"loss {w}" in s for w in ("gradient", "memory") for s in (t.asked, t.said)),
        "nothinglikethis": lambda t: False,
    }
    for search, holds in cases.items():
        wanted = {t.id for t in talks if holds(t)}
        answer = ask(server, run=RUN, search=search, limit=1000, messages="false")
        assert set(ids(answer)) == wanted, search
        assert answer["total"] == len(wanted), search

    # Each order is the order of the values, nothing last, and pages of any size are the same list.
    by_id = {t.id: t for t in talks}
    for sort, key in {"step": lambda t: t.step, "reward": lambda t: t.reward, "metadata.temperature": lambda t: t.temperature,
                      "length": lambda t: None, "time": lambda t: t.number, "status": lambda t: "truncated" if t.truncated else "completed"}.items():
        for sign in ("", "-"):
            whole = every_page(server, run=RUN, sort=sign + sort, limit=400, messages="false")
            assert len({c["id"] for c in whole}) == len(talks), sort
            small = every_page(server, run=RUN, sort=sign + sort, limit=37, messages="false")
            assert [c["id"] for c in small] == [c["id"] for c in whole], sort
            skipped = ask(server, run=RUN, sort=sign + sort, limit=10, offset=190, messages="false")
            assert ids(skipped) == [c["id"] for c in whole[190:200]], sort
            values = [key(by_id[c["id"]]) for c in whole]
            known = [v for v in values if v is not None]
            assert values == known + [None] * (len(values) - len(known)), sort
            assert known == sorted(known, reverse=sign == "-"), sort

    # Facets against SQL and against what was sent.
    facets = ask(server, run=RUN, search="reward:>=0", limit=0, facets="step,reward,status,tool,key")["facets"]
    chosen = [t for t in talks if t.reward is not None]
    count = lambda key: {k: sum(1 for t in chosen if key(t) == k) for k in {key(t) for t in chosen}}
    assert {f["value"]: f["count"] for f in facets["step"]["values"]} == count(lambda t: t.step)
    assert {f["value"]: f["count"] for f in facets["status"]["values"]} == count(lambda t: "truncated" if t.truncated else "completed")
    assert sum(f["count"] for f in facets["tool"]["values"]) == sum(1 for t in chosen if t.tool)
    for f in facets["reward"]["values"]:
        rows = server.one("select count(*) from conversations where run_id = "
                          f"'{RUN}' and reward >= {f['from']} and reward < {f['to']}")
        assert f["count"] == rows
    assert sum(f["count"] for f in facets["reward"]["values"]) == len(chosen)

    # What a list gives is what was said; ids are unique.
    answer = ask(server, run=RUN, limit=400)
    for c in answer["conversations"]:
        talk = by_id[c["id"]]
        assert c["messages"][0] == talk.messages[0]
        assert c["messages"][-1]["content"] == talk.said
        if talk.tool:
            assert c["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{\"q\": \"half"
    hit = ask(server, run=RUN, search="role:tool \"out of memory\"", snippets="true", limit=1)["conversations"][0]
    assert hit["snippet"]["role"] == "tool" and "memory" in hit["snippet"]["pieces"][1::2]
    assert server.sql("select count(*), count(distinct id) from conversations where run_id = "
                      f"'{RUN}'") == [[len(talks), len(talks)]]


def test_bad_parameters_are_refused_with_the_good_ones(server):
    for params, says in [
        ({"limit": "-1"}, "from 0 to 1000"), ({"limit": "many"}, "from 0 to 1000"), ({"offset": "x"}, "from 0 to"),
        ({"sort": "colour"}, "step, reward, time"), ({"search": "stpe:3"}, "expected one of: role, step, reward"),
        ({"search": "("}, "`(` without `)`"), ({"search": "/(/"}, "parameter `search`"), ({"facets": "colour"}, "step, reward"),
        ({"cursor": "x"}, "the unchanged `next` of a response"), ({"serach": "x"}, "one of: project, run"), ({"step": "x"}, "range"),
        ({"search": "a" * 3000}, "longer than 2048 bytes"),
    ]:
        answer = server.get("/api/v1/conversations", params=params)
        assert answer.status_code == 400, params
        assert answer.headers["content-type"] == "application/problem+json"
        assert says in answer.json()["detail"], answer.json()
    assert server.get("/api/v1/conversations/no/such").status_code == 404
    assert server.get("/api/v1/media/zz").status_code == 404
    assert server.get("/api/v1/media/" + "0" * 64).status_code == 404


def test_the_index_survives_kill_nine_and_can_be_built_anew(serve, tmp_path):
    server = serve()
    dice = random.Random(9)
    talks = [Talk(n, dice) for n in range(60)]
    send(server, talks[:30])
    settled(server, 30)
    send(server, talks[30:])
    server.kill()
    server.start()
    settled(server, 60)
    # Again the same: still once each.
    send(server, talks)
    time.sleep(1)
    assert total(server) == 60
    bash = total(server, search="tool:bash")
    server.stop()
    done = run("reindex", "--data", server.data)
    assert "60 conversations" in done.stdout
    listed = json.loads(run("conversations", "--data", server.data, "--format", "json", "--limit", 100, "tool:bash").stdout)
    assert listed["total"] == bash == sum(1 for t in talks if t.tool == "bash")
    # A damaged index is no reason to stop: it is built anew.
    for file in (server.data / "index").glob("*.store"):
        file.write_bytes(b"damaged")
    (server.data / "index" / "meta.json").write_text("{")
    server.start()
    settled(server, 60)


def test_a_conversation_logged_again_replaces_the_old_one(server):
    talk = Talk(1, random.Random(1))
    talk.messages[-1]["content"] = "the first wording"
    send(server, [talk])
    settled(server, 1)
    talk.messages[-1]["content"] = "a later and longer wording"
    send(server, [talk])
    wait_until(lambda: total(server, search="later") == 1)
    assert (total(server), total(server, search="\"first wording\"")) == (1, 0)
    assert ask(server)["conversations"][0]["messages"][-1]["content"] == "a later and longer wording"


def test_images_inside_messages_become_files(server):
    import base64
    import hashlib
    png = b"\x89PNG\r\n\x1a\n" + bytes(64)
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png).decode()}}]
    one = span(1, attributes=[attribute("gen_ai.input.messages", json.dumps([{"role": "user", "content": content}]))])
    body = request([one]).SerializeToString()
    assert requests.post(server.http + "/v1/traces", data=body, headers={"content-type": "application/x-protobuf"}, timeout=30).ok
    settled(server, 1)
    found = ask(server)["conversations"][0]
    name = hashlib.sha256(png).hexdigest()
    assert found["messages"][0]["content"] == [{"type": "image", "media": name}] and found["thumbnails"] == [name]
    assert server.get("/api/v1/media/" + name).content == png


def test_images_inside_imported_messages_become_files_too(tmp_path):
    import base64
    import hashlib
    png = b"\x89PNG\r\n\x1a\n" + bytes(64)
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png).decode()}}]
    messages = json.dumps([{"role": "user", "content": content}])
    call = {"traceId": "1" * 32, "spanId": "2" * 16, "name": "chat", "startTimeUnixNano": "1790000000000000000",
            "endTimeUnixNano": "1790000001000000000",
            "attributes": [{"key": "gen_ai.input.messages", "value": {"stringValue": messages}}]}
    file, data = tmp_path / "call.jsonl", tmp_path / "data"
    file.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [call]}]}]}) + "\n")
    run("import", file, "--data", data)
    found = json.loads(run("conversations", "--data", data, "--format", "jsonl").stdout)
    name = hashlib.sha256(png).hexdigest()
    assert found["messages"][0]["content"] == [{"type": "image", "media": name}]
    assert (data / "media" / name[:2] / name).read_bytes() == png


def test_a_deleted_run_leaves_the_index(server):
    dice = random.Random(3)
    send(server, [Talk(n, dice) for n in range(20)])
    settled(server, 20)
    answer = requests.delete(f"{server.url}/api/v1/runs/{quote(RUN, safe='')}", timeout=30)
    assert answer.ok
    settled(server, 0)


def test_command_line_and_exports(server, tmp_path):
    dice = random.Random(4)
    talks = [Talk(n, dice) for n in range(300)]
    send(server, talks)
    settled(server, 300)
    lines = run("conversations", "--server", server.url, "--run", RUN, "--format", "jsonl", "--sort", "step").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 300 and [r["step"] for r in rows] == sorted(t.step for t in talks)
    assert all(m["role"] for r in rows for m in r["messages"])
    listed = run("conversations", "--server", server.url, "role:tool", "memory", "--limit", 3).stdout
    assert "of memory" in listed and "3 of" in listed
    shown = run("conversations", "--server", server.url, "--id", talks[0].id).stdout
    assert talks[0].said in shown
    file = tmp_path / "out.parquet"
    run("conversations", "--server", server.url, "--format", "parquet", "--out", file, "step:3")
    assert file.read_bytes()[:4] == b"PAR1"
    bad = run("conversations", "--server", server.url, "--sort", "colour", check=False)
    assert bad.returncode == 2 and "step, reward" in bad.stderr


def test_extreme_conversations(server):
    long = "x" * 1000 + " " + "needleword " + "y" * (3 << 20)
    turns = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"turn {n}"} for n in range(10_000)]
    odd = [{"role": "wizard", "content": [{"type": "hologram", "beam": 3}]}, "just text", {"no": "role"}, 7,
           {"role": "assistant", "content": "<script>alert(1)</script>", "tool_calls": "half"}]
    cases = [[{"role": "user", "content": long}], turns, odd]
    spans = [span(n, trace_id=bytes([n + 1] * 16), attributes=[attribute("gen_ai.input.messages", json.dumps(m))])
             for n, m in enumerate(cases)]
    for one in spans:
        body = request([one]).SerializeToString()
        assert requests.post(server.http + "/v1/traces", data=body, headers={"content-type": "application/x-protobuf"}, timeout=30).ok
    settled(server, 3)
    found = ask(server, search="needleword")["conversations"]
    assert len(found) == 1 and found[0]["messages"][0]["content"] == long
    many = ask(server, search="\"turn 9999\"", messages="false")["conversations"][0]
    assert (many["message_count"], many["turn_count"]) == (10_000, 5_000)
    whole = server.get("/api/v1/conversations/" + quote(many["id"], safe="")).json()
    assert len(whole["messages"]) == 10_000
    strange = ask(server, search="contains:\"<script>\"")["conversations"][0]
    assert strange["messages"][0]["content"] == [{"type": "hologram", "beam": 3}]


def test_a_page_of_long_conversations_ends_early_and_the_next_one_goes_on(server):
    # As long as an attribute may be: 18 of them have 70 MB.
    long, many = "y" * 3_900_000, 18
    for n in range(many):
        start = 1_790_000_000_000_000_000 + n * 1_000_000
        messages = json.dumps([{"role": "user", "content": f"{n} {long}"}])
        one = span(n, trace_id=bytes([n + 1] * 16), attributes=[attribute("gen_ai.input.messages", messages)],
                   start_time_unix_nano=start, end_time_unix_nano=start + 500_000)
        body = request([one]).SerializeToString()
        assert requests.post(server.http + "/v1/traces", data=body, headers={"content-type": "application/x-protobuf"}, timeout=120).ok
    wait_until(lambda: total(server) == many, 120)
    first = ask(server, sort="time", limit=1000)
    assert len(first["conversations"]) in (16, 17) and first["total"] == many and first["next"], "64 MiB"
    found = every_page(server, sort="time", limit=1000)
    assert [c["messages"][0]["content"].split()[0] for c in found] == [str(n) for n in range(many)]
    light = ask(server, sort="time", limit=1000, messages="false")
    assert ids(light) == [c["id"] for c in found] and light["next"] is None
    exported = run("conversations", "--server", server.url, "--format", "jsonl", "--sort", "time").stdout.splitlines()
    assert [json.loads(line)["id"] for line in exported] == ids(light)


def test_the_demo_has_conversations_with_pictures_and_timing(serve, tmp_path):
    data = tmp_path / "demo"
    run("demo", "--no-serve", "--data", data, "--steps", 3, "--samples", 32)
    server = serve(data)
    settled(server, server.one("select count(*) from conversations"))
    # The worst sample of a step, the tool error that spoiled it, and its best sibling: three questions.
    pictured = ask(server, search="media:>0", limit=5, messages="false")["conversations"]
    assert pictured
    file = server.get("/api/v1/media/" + pictured[0]["thumbnails"][0])
    assert file.headers["content-type"] == "image/png" and file.content[:4] == b"\x89PNG"
    assert "default-src 'none'" in file.headers["content-security-policy"] and file.headers["x-content-type-options"] == "nosniff"
    small = server.get(f"/api/v1/media/{pictured[0]['thumbnails'][0]}?thumbnail=32")
    assert small.ok and small.content[:4] == b"\x89PNG"
    assert server.get(f"/api/v1/media/{pictured[0]['thumbnails'][0]}?thumbnail=9999").status_code == 400
    agent = ask(server, search="tool_calls:>0", limit=1, sort="-tool_calls")["conversations"][0]
    whole = server.get("/api/v1/conversations/" + agent["id"], params={"timing": "true"}).json()
    kinds = {s["kind"] for s in whole["timing"]}
    assert kinds == {"generation", "tool"}
    for strip in whole["timing"]:
        role = whole["messages"][strip["message"]]["role"]
        assert role == ("assistant" if strip["kind"] == "generation" else "tool")
        if strip["kind"] == "generation":
            assert strip["completion_tokens"] > 0 and strip["seconds"] > 0
            assert {"prefill", "decode"} <= {p["kind"] for p in strip["parts"]}
    assert len([s for s in whole["timing"] if s["kind"] == "generation"]) == whole["turn_count"]
    group = ask(server, run=agent["run_id"], step=agent["step"], group=agent["group_id"], sort="-reward")
    rewards = [c["reward"] for c in group["conversations"] if c["reward"] is not None]
    assert len(group["conversations"]) > 1 and rewards == sorted(rewards, reverse=True)
    openings = {json.dumps([m for m in c["messages"] if m["role"] == "user"][0]) for c in group["conversations"]}
    assert len(openings) == 1
    stats = server.get("/api/v1/conversations-stats").json()
    assert stats["conversations"] > 0 and stats["index_bytes"] > 0


def test_forged_media_are_only_handed_out_for_download(serve, tmp_path):
    data = tmp_path / "data"
    server = serve(data)
    server.stop()
    import hashlib
    forged = [b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", b"<html><script>alert(1)</script>", b"GIF8"]
    for content in forged:
        name = hashlib.sha256(content).hexdigest()
        (data / "media" / name[:2]).mkdir(parents=True, exist_ok=True)
        (data / "media" / name[:2] / name).write_bytes(content)
    server.start()
    for content in forged:
        answer = server.get("/api/v1/media/" + hashlib.sha256(content).hexdigest())
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert server.get(f"/api/v1/media/{hashlib.sha256(content).hexdigest()}?thumbnail=64").status_code == 422


def test_health_says_that_the_search_index_cannot_be_opened(tmp_path):
    """A file is in its place. Everything else goes on."""
    data = tmp_path / "data"
    server = Server(data)
    try:
        server.stop()
        shutil.rmtree(data / "index", ignore_errors=True)
        (data / "index").write_text("in the way")
        server.start()
        health = requests.get(server.url + "/api/v1/health", timeout=10).json()
        assert any("the search index cannot be opened" in problem for problem in health["problems"]), health["problems"]
        assert requests.get(server.url + "/api/v1/conversations", timeout=10).status_code == 503
        assert requests.get(server.url + "/api/v1/runs", timeout=10).ok
    finally:
        server.stop()
