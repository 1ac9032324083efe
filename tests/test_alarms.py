"""Alarms, from the user's side: rule files that a real Prometheus evaluates beside us, conditions in SQL, built-in alarms, every sink (a
real Alertmanager and a real SMTP server among them), silences, restarts and bad input."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from conftest import BINARY, wait_until
from exporter import Exporter
from test_prometheus import Prometheus, installed

RULES = """
groups:
  - name: engines
    interval: 1s
    rules:
      - record: job:queue:sum
        expr: sum by (job) (queue)
        labels:
          kind: derived
      - alert: QueueLong
        expr: job:queue:sum > 10
        labels:
          severity: page
          share: '{{ $value | humanize }}'
        annotations:
          summary: 'The queue of {{ $labels.job }} has {{ $value }} requests ({{ printf "%.1f" $value }}).'
      - alert: EngineBusy
        expr: queue{engine="a"} > 5
        for: 3s
        keep_firing_for: 2s
      - alert: Never
        expr: queue < 0
      - alert: Scalar
        expr: vector(1)
        for: 1h
"""


class Page(Exporter):
    """Serves what it is told."""

    def __init__(self, text):
        super().__init__()
        self.page = text


class Receiver:
    """Takes webhooks and keeps them. May be slow or refuse."""

    def __init__(self):
        self.got, self.status, self.hang = [], 200, threading.Event()
        self.hang.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.hang.wait(60)
                receiver.got.append((self.path, json.loads(body), dict(self.headers)))
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def statuses(self, alarm=None):
        return [m["status"] for _, m, _ in self.got if alarm in (None, m.get("alarm"))]

    def close(self):
        self.hang.set()
        self.server.shutdown()
        self.server.server_close()


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


def configured(tmp_path, text="", rules=None, builtin=False):
    """Flags with a configuration. Rounds are short."""
    flags = []
    if rules is not None:
        (tmp_path / "rules.yml").write_text(rules)
        flags = ["--rules", str(tmp_path / "rules.yml")]
    off = "" if builtin else "[server.alarms.builtin]\n" + "".join(
        f"{key} = {{ enabled = false }}\n" for key in (
            "no_progress", "step_slow", "reward_collapse", "entropy_collapse", "samples_truncated", "samples_aborted",
            "groups_without_variance", "engine_gone", "data_dropped", "disk_nearly_full"))
    (tmp_path / "rollscope.toml").write_text(f"[server.alarms]\ninterval_s = 0.5\n{text}\n{off}")
    return ["--config", str(tmp_path / "rollscope.toml"), *flags]


def alarms(server, **params):
    answer = server.get("/api/v1/alarms", params=params)
    assert answer.ok, answer.text
    return answer.json()


def states(server):
    return {a["alarm"]: a["state"] for a in alarms(server, history="false")["alarms"]}


# --- Rules ---------------------------------------------------------------------------------------------------------------------


def shape(groups):
    """What must be the same, without times and what depends on them."""
    out = []
    for group in groups:
        rules = []
        for rule in group["rules"]:
            kept = {k: v for k, v in rule.items() if k not in ("evaluationTime", "lastEvaluation")}
            if "alerts" in kept:
                kept["alerts"] = sorted(({k: v for k, v in a.items() if k not in ("activeAt", "keepFiringSince")} for a in kept["alerts"]),
                                        key=lambda a: json.dumps(a["labels"], sort_keys=True))
            rules.append(kept)
        out.append({"name": group["name"], "interval": group["interval"], "limit": group.get("limit", 0), "rules": rules})
    return out


def test_the_same_rules_give_the_same_alerts_as_a_real_prometheus(tmp_path, serve):
    installed()
    page = Page('queue{engine="a"} 1\nqueue{engine="b"} 2\n')
    (tmp_path / "rules.yml").write_text(RULES)
    checked = subprocess.run(["promtool", "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (tmp_path / "scrape.yml").write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [
        {"job_name": "sglang", "static_configs": [{"targets": [f"127.0.0.1:{page.port}"]}]}]}))
    prometheus = Prometheus(tmp_path / "prometheus", page, rule_files=[str(tmp_path / "rules.yml")])
    server = serve(None, *configured(tmp_path, rules=RULES), "--scrape-config", str(tmp_path / "scrape.yml"))
    try:
        bases = [prometheus.url + "/api/v1", server.url + "/prometheus/api/v1"]
        data = lambda base, path: requests.get(f"{base}/{path}", timeout=30).json()["data"]

        def settled(firing):
            def look():
                theirs, ours = (shape(data(base, "rules")["groups"]) for base in bases)
                state = {r["name"]: r.get("state") for r in ours[0]["rules"]} if ours else {}
                return ours == theirs and state.get("QueueLong") == state.get("EngineBusy") == firing and all(
                    r["health"] == "ok" for r in ours[0]["rules"])
            return look

        wait_until(settled("inactive"), 60)
        page.page = 'queue{engine="a"} 7\nqueue{engine="b"} 1234567\n'
        wait_until(settled("firing"), 60)
        theirs, ours = ([{k: v for k, v in a.items() if k != "activeAt"} for a in data(base, "alerts")["alerts"]] for base in bases)
        by = lambda alerts: sorted(alerts, key=lambda a: json.dumps(a, sort_keys=True))
        assert by(ours) == by(theirs) and {a["labels"]["alertname"] for a in ours} == {"QueueLong", "EngineBusy", "Scalar"}
        # The series that both keep of them.
        query = lambda base, text: sorted(json.dumps(s["metric"], sort_keys=True) for s in
                                          requests.get(f"{base}/query", params={"query": text}, timeout=30).json()["data"]["result"])
        for text in ["ALERTS", "ALERTS_FOR_STATE", "job:queue:sum"]:
            wait_until(lambda: query(bases[0], text) == query(bases[1], text) != [], 30)
        names = lambda base, params: [[r["name"] for r in g["rules"]] for g in data(base, "rules?" + params)["groups"]]
        for params in ["type=alert", "type=record"]:
            assert names(bases[1], params) == names(bases[0], params), params
        # Filters of newer ones.
        assert names(bases[1], "rule_name[]=QueueLong") == [["QueueLong"]]
        assert names(bases[1], "rule_group[]=none") == [] and len(names(bases[1], "rule_group[]=engines")) == 1
        page.page = 'queue{engine="a"} 1\nqueue{engine="b"} 2\n'
        wait_until(settled("inactive"), 60)
        for text in ['ALERTS{alertname!="Scalar"}', "job:queue:sum > 3"]:
            wait_until(lambda: query(bases[0], text) == query(bases[1], text), 30)
    finally:
        prometheus.stop()
        page.close()


def test_a_bad_rule_file_stops_the_start_with_its_line(tmp_path):
    good = "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: up\n"
    for text, line, named in [
        (good.replace("expr: up", "expr: sum("), 5, "could not parse expression"),
        (good + "    fro: 5m\n", 6, "fro"),
        (good + "    labels: {a: '{{ query \"up\" }}'}\n", 6, "query"),
        ("groups: {", 1, ""),
    ]:
        (tmp_path / "bad.yml").write_text(text)
        ended = subprocess.run([BINARY, "serve", "--data", tmp_path / "data", "--listen", "127.0.0.1:0", "--otlp-grpc", "", "--otlp-http", "",
                                "--rules", tmp_path / "bad.yml"], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2, ended.stderr
        assert f"bad.yml:{line}:" in ended.stderr and named in ended.stderr, ended.stderr
    for config, named in [
        ("[server.alarms]\ninterval_s = 0\n", "interval_s"),
        ("[server.alarms.builtin.step_slwo]\n", "step_slwo"),
        ("[[server.alarms.webhook]]\nurl = 'example.com'\n", "http://"),
        ("[[server.alarms.sql]]\nname = 'a'\nquery = ''\n", "query"),
    ]:
        (tmp_path / "bad.toml").write_text(config)
        ended = subprocess.run([BINARY, "serve", "--data", tmp_path / "data", "--listen", "127.0.0.1:0", "--otlp-grpc", "", "--otlp-http", "",
                                "--config", tmp_path / "bad.toml"], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2 and named in ended.stderr, ended.stderr
    ended = subprocess.run([BINARY, "serve", "--data", tmp_path / "data", "--rules", tmp_path / "none.yml"], capture_output=True, text=True,
                           timeout=60)
    assert ended.returncode == 2 and "none.yml" in ended.stderr, ended.stderr


def test_a_changed_file_is_read_again_and_a_bad_change_is_not(tmp_path, serve):
    rules = "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: vector(1)\n"
    server = serve(None, *configured(tmp_path, rules=rules))
    wait_until(lambda: states(server) == {"A": "firing"})
    since = alarms(server)["alarms"][0]["since_ns"]
    (tmp_path / "rules.yml").write_text(rules + "  - alert: B\n    expr: vector(2)\n")
    wait_until(lambda: states(server) == {"A": "firing", "B": "firing"})
    assert next(a for a in alarms(server)["alarms"] if a["alarm"] == "A")["since_ns"] == since
    (tmp_path / "rules.yml").write_text(rules + "  - alert: B\n    expr: sum(\n")
    wait_until(lambda: alarms(server)["problems"])
    problem = alarms(server)["problems"][0]
    assert "rules.yml:7:" in problem and "stay as they were" in problem
    assert any("rules.yml:7:" in p for p in server.get("/api/v1/health").json()["problems"])
    assert states(server) == {"A": "firing", "B": "firing"}
    (tmp_path / "rules.yml").write_text(rules)
    wait_until(lambda: states(server) == {"A": "firing"} and not alarms(server)["problems"])
    # B is over, also in its series.
    found = server.get("/prometheus/api/v1/query", params={"query": 'ALERTS{alertname="B"}'}).json()["data"]["result"]
    assert found == []


def test_a_kill_between_pending_and_firing_keeps_the_time(tmp_path, serve, page):
    rules = "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: queue > 5\n    for: 8s\n  - alert: B\n    expr: queue > 5\n"
    page.page = "queue 9\n"
    server = serve(None, *configured(tmp_path, rules=rules), "--scrape", page.url + "@1s")
    wait_until(lambda: states(server) == {"A": "pending", "B": "firing"})
    began = {a["alarm"]: int(a["since_ns"]) for a in alarms(server)["alarms"]}
    time.sleep(4)
    server.kill()
    server.start()
    started = time.time()
    wait_until(lambda: states(server).get("A") == "firing")
    # Without what was kept it would take 8 s from here.
    again = {a["alarm"]: int(a["since_ns"]) for a in alarms(server)["alarms"]}
    assert again["B"] == began["B"]
    down = again["A"] - began["A"]
    assert 0 <= down < (time.time() - started + 30) * 1e9 and again["A"] < started * 1e9, "it goes on from where it was"
    episodes = [e for e in alarms(server)["history"] if e["alarm"] == "B"]
    assert len(episodes) == 1 and episodes[0]["open"], episodes


# --- Conditions in SQL, and built in -------------------------------------------------------------------------------------------


def send_run(server, run, seconds):
    """Steps of so many seconds, one after the other, the last of which ends now."""
    start = time.time() - sum(seconds)
    spans = []
    for number, took in enumerate(seconds):
        trace = f"{abs(hash((run, number))) & ((1 << 128) - 1):032x}"
        attributes = [{"key": "rl.step", "value": {"intValue": str(number)}}]
        ns = lambda t: str(int(t * 1e9))
        spans.append({"traceId": trace, "spanId": f"{number + 1:016x}", "name": "rollscope.step", "kind": 1, "startTimeUnixNano": ns(start),
                      "endTimeUnixNano": ns(start + took), "attributes": attributes})
        start += took
    resource = [{"key": "rl.run.id", "value": {"stringValue": run}}, {"key": "service.name", "value": {"stringValue": "trainer"}}]
    message = {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [{"scope": {"name": "t"}, "spans": spans}]}]}
    answer = server.otlp_json(message)
    assert answer.ok, answer.text


def test_each_row_of_a_query_is_an_alarm(tmp_path, serve, receiver):
    config = f"""
[[server.alarms.sql]]
name = "ManySpans"
query = "select run_id as run, count(*) as value from spans group by run_id having count(*) > 3"
labels = {{ severity = "info" }}
summary = "{{{{ $labels.run }}}} has {{{{ $value }}}} spans."

[[server.alarms.sql]]
name = "Broken"
query = "select nothing from nowhere"

[[server.alarms.webhook]]
url = "{receiver.url}/hook"
headers = {{ authorization = "Bearer t0ken" }}
"""
    server = serve(None, *configured(tmp_path, config))
    send_run(server, "small", [1] * 2)
    send_run(server, "large", [1] * 5)
    wait_until(lambda: states(server) == {"ManySpans": "firing"})
    alarm = alarms(server)["alarms"][0]
    assert alarm["labels"] == {"alertname": "ManySpans", "run": "large", "severity": "info"}
    assert alarm["sentence"] == "large has 5 spans." and alarm["origin"] == "sql"
    broken = next(r for r in alarms(server)["rules"] if r["name"] == "Broken")
    assert "nowhere" in broken["error"]
    wait_until(lambda: receiver.got)
    path, message, headers = receiver.got[0]
    assert (path, headers["authorization"]) == ("/hook", "Bearer t0ken")
    assert message["alarms"][0]["labels"] == alarm["labels"] and message["version"] == 1
    assert "t0ken" not in subprocess.run([BINARY, "serve", "--config", tmp_path / "rollscope.toml", "--print-config"], capture_output=True,
                                         text=True).stdout
    assert alarms(server, run="large")["alarms"] and not alarms(server, run="small")["alarms"]


def test_built_in_alarms_say_what_is_wrong(tmp_path, serve, page):
    # The disk of who runs the tests may be nearly full.
    config = "[server.alarms.builtin]\nengine_gone = { for = '1s' }\nno_progress = { enabled = false }\ndisk_nearly_full = { threshold = 0.0 }\n"
    server = serve(None, *configured(tmp_path, config, builtin=True), "--scrape", page.url + "@1s")
    send_run(server, "steady", [20.0] * 12)
    wait_until(lambda: alarms(server)["rounds"] > 3)
    time.sleep(2)
    assert states(server) == {}
    page.status = 500
    wait_until(lambda: states(server) == {"EngineGone": "firing"})
    gone = alarms(server)["alarms"][0]
    assert f"127.0.0.1:{page.port}" in gone["sentence"] and gone["origin"] == "built-in"
    page.status = 200
    wait_until(lambda: states(server) == {})
    send_run(server, "slow", [20.0] * 12 + [70.0])
    wait_until(lambda: states(server) == {"StepSlow": "firing"}, 60)
    slow = alarms(server)["alarms"][0]
    assert slow["labels"]["run"] == "slow" and slow["sentence"].startswith("Step 12 of slow took 1m10s, 3.5 times the usual 20s.")
    assert slow["place"] == "/run/slow/step/12"
    # A message that is refused is data that is lost.
    assert not requests.post(server.http + "/v1/traces", data=b"\xff\xff", headers={"content-type": "application/x-protobuf"}, timeout=30).ok
    wait_until(lambda: states(server).get("DataDropped") == "firing")
    listed = {r["name"] for r in alarms(server)["rules"]}
    assert {"StepSlow", "RewardCollapse", "DiskNearlyFull", "EngineGone"} <= listed and "NoProgress" not in listed


def test_a_run_that_hangs_tells_where_it_stands_before_anyone_asks(tmp_path, serve, receiver):
    config = f"""
[server.alarms.builtin]
no_progress = {{ for = "15s" }}
disk_nearly_full = {{ threshold = 1.0 }}
[[server.alarms.webhook]]
url = "{receiver.url}/hook"
"""
    server = serve(None, *configured(tmp_path, config, builtin=True))
    run = 'run "x" <b>/ü'
    program = tmp_path / "trainer.py"
    program.write_text(f"""
import rollscope, sys, threading, time
rollscope.init(project="p", id={run!r})
def work(step):
    with rollscope.step(step), rollscope.span("rollout", phase="rollout"):
        time.sleep(0.2)
def tokenize_forever():
    sys.stdin.read()
for step in range(10):
    work(step)
with rollscope.step(10), rollscope.span("rollout", phase="rollout"):
    tokenize_forever()
for step in range(11, 20):
    work(step)
sys.stdout.write("done")
sys.stdout.flush()
time.sleep(60)
""")
    trainer = subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, env={**os.environ, "ROLLSCOPE_ENDPOINT": server.grpc})
    try:
        told = lambda status: next((m for _, m, _ in list(receiver.got) if m["status"] == status and m["alarm"] == "NoProgress"), None)
        wait_until(lambda: told("firing"), 120)
        message = told("firing")
        assert "Nothing has moved since" in message["sentence"] and "tokenize_forever" in message["sentence"], message
        assert message["link"].endswith("#/run/run%20%22x%22%20%3Cb%3E%2F%C3%BC/now"), message
        full = next(m for _, m, _ in receiver.got if m["alarm"] == "DiskNearlyFull")
        assert "of the disk with the data is free" in full["sentence"]
        trainer.stdin.close()
        wait_until(lambda: told("resolved"), 60)
    finally:
        trainer.kill()
        trainer.wait(timeout=30)


# --- Sinks ---------------------------------------------------------------------------------------------------------------------

HIGH = "groups:\n- name: g\n  rules:\n  - alert: High\n    expr: queue > 5\n    annotations:\n      summary: 'The queue has {{ $value }} <requests>.'\n"


def raise_and_end(server, page):
    page.page = "queue 9\n"
    wait_until(lambda: states(server) == {"High": "firing"})
    yield
    page.page = "queue 1\n"
    wait_until(lambda: states(server) == {})
    yield


def sink(server, name):
    return next(s for s in alarms(server, history="false")["sinks"] if s["name"] == name)


def test_webhook_slack_and_command_hear_of_the_beginning_and_the_end(tmp_path, serve, page, receiver):
    heard = tmp_path / "heard"
    program = tmp_path / "hear.py"
    program.write_text(f"import sys\nopen({str(heard)!r}, 'a').write(sys.stdin.read() + '|' + sys.argv[1] + '\\n')\n")
    config = f"""
page_url = "https://rollscope.example.com/"
[[server.alarms.webhook]]
url = "{receiver.url}/hook"
[[server.alarms.slack]]
url = "{receiver.url}/slack"
[[server.alarms.command]]
command = ["{sys.executable}", "{program}", "$HOME; rm -rf x"]
[[server.alarms.command]]
name = "slow"
command = ["sleep", "1000"]
timeout_s = 0.5
"""
    server = serve(None, *configured(tmp_path, config, HIGH), "--scrape", page.url + "@1s")
    both = raise_and_end(server, page)
    next(both)
    of = lambda path: [m for p, m, _ in receiver.got if p == path]
    wait_until(lambda: of("/hook") and of("/slack") and heard.exists())
    message = of("/hook")[0]
    assert (message["status"], message["alarm"], message["source"]) == ("firing", "High", "rollscope")
    assert message["sentence"] == "The queue has 9 <requests>." and message["link"] == "https://rollscope.example.com/#/alarms?alarm=High"
    alarm = message["alarms"][0]
    assert alarm["value"] == "9" and alarm["ended_at"] is None and alarm["labels"]["alertname"] == "High"
    text = of("/slack")[0]["text"]
    assert "Firing: High" in text and "&lt;requests&gt;" in text and "|open>" in text
    # One that hangs is ended, and holds nothing up.
    wait_until(lambda: sink(server, "slow")["failed"] > 0)
    assert "took longer than 0.5 s" in sink(server, "slow")["last_error"]
    next(both)
    wait_until(lambda: len(of("/hook")) == 2 and len(of("/slack")) == 2 and heard.read_text().count("\n") == 2)
    end = of("/hook")[1]
    assert end["status"] == "resolved" and end["alarms"][0]["ended_at"] and end["alarms"][0]["fingerprint"] == alarm["fingerprint"]
    assert "Resolved: High" in of("/slack")[1]["text"]
    lines = heard.read_text().splitlines()
    assert all(line.endswith("|$HOME; rm -rf x") for line in lines), "no shell reads the arguments"
    assert [json.loads(line.rpartition("|")[0])["status"] for line in lines] == ["firing", "resolved"]
    assert sink(server, "webhook")["sent"] == 2
    text = server.get("/metrics").text
    assert 'rollscope_alarm_sink_sent_total{sink="webhook"} 2' in text and "rollscope_alarm_rounds_total" in text


def test_what_was_told_is_not_told_again_after_a_restart(tmp_path, serve, page, receiver):
    config = f'[[server.alarms.webhook]]\nurl = "{receiver.url}"\n'
    page.page = "queue 9\n"
    server = serve(None, *configured(tmp_path, config, HIGH), "--scrape", page.url + "@1s")
    wait_until(lambda: receiver.statuses() == ["firing"])
    # It is kept with the next round.
    wait_until(lambda: (server.data / "alarms.json").exists() and json.loads((server.data / "alarms.json").read_text())["told"])
    server.kill()
    server.start()
    wait_until(lambda: states(server) == {"High": "firing"} and alarms(server)["rounds"] > 4)
    assert receiver.statuses() == ["firing"]
    # What ends while nobody watches is told, too.
    server.kill()
    page.page = "queue 1\n"
    server.start()
    wait_until(lambda: receiver.statuses() == ["firing", "resolved"], 60)


def test_what_is_looked_for_later_after_a_restart_has_not_ended(tmp_path, serve, page, receiver):
    config = f"""
[[server.alarms.sql]]
name = "Always"
query = "select 1 as value"

[[server.alarms.webhook]]
url = "{receiver.url}"
"""
    page.page = "queue 9\n"
    server = serve(None, *configured(tmp_path, config, HIGH), "--scrape", page.url + "@1s")
    wait_until(lambda: receiver.statuses() == ["firing"] * 2)
    told = lambda: json.loads((server.data / "alarms.json").read_text())["told"]
    wait_until(lambda: (server.data / "alarms.json").exists() and len(told()) == 2)
    server.kill()
    server.start()
    # Rules and conditions are looked at on their own, and one of them is first.
    wait_until(lambda: states(server) == {"High": "firing", "Always": "firing"} and alarms(server)["rounds"] > 6)
    assert receiver.statuses() == ["firing"] * 2


def test_a_sink_that_is_down_or_hangs_holds_nothing_up(tmp_path, serve, page, receiver):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = free.getsockname()[1]
    stuck = Receiver()
    stuck.hang.clear()
    config = f"""
max_backlog = 1
repeat_s = 1
[[server.alarms.webhook]]
name = "down"
url = "http://127.0.0.1:{nobody}"
[[server.alarms.webhook]]
name = "stuck"
url = "{stuck.url}"
timeout_s = 60
[[server.alarms.webhook]]
name = "fine"
url = "{receiver.url}"
"""
    rules = "groups:\n- name: g\n  rules:\n" + "".join(f"  - alert: A{n}\n    expr: vector({n})\n" for n in range(8))
    server = serve(None, *configured(tmp_path, config, rules))
    try:
        wait_until(lambda: len(set(m["alarm"] for _, m, _ in receiver.got)) == 8, 60)
        wait_until(lambda: sink(server, "down")["failed"] > 1 and sink(server, "stuck")["dropped"] > 0)
        assert sink(server, "down")["last_error"] and sink(server, "stuck")["backlog"] <= 1
        before = alarms(server, history="false")["rounds"]
        wait_until(lambda: alarms(server, history="false")["rounds"] > before + 3)
        # When it is back, it hears of all that still fires.
        stuck.hang.set()
        wait_until(lambda: len(set(m["alarm"] for _, m, _ in stuck.got)) == 8, 60)
        # A stop does not wait for a sink.
        stuck.hang.clear()
        assert server.stop() == 0
        server.start()
    finally:
        stuck.close()


def test_a_real_alertmanager_takes_our_alarms(tmp_path, serve, page):
    binary = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if not binary:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", "prometheus-alertmanager"], capture_output=True)
        binary = shutil.which("prometheus-alertmanager")
    if not binary:
        pytest.fail("Debian's package prometheus-alertmanager is not here, and apt-get cannot install it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "alertmanager.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    process = subprocess.Popen([binary, f"--config.file={tmp_path}/alertmanager.yml", f"--storage.path={tmp_path}/am",
                                f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"

        def theirs():
            try:
                return requests.get(url + "/api/v2/alerts", timeout=10).json()
            except requests.ConnectionError:
                return None

        wait_until(lambda: theirs() is not None, 60)
        server = serve(None, *configured(tmp_path, f'[[server.alarms.alertmanager]]\nurl = "{url}"\n', HIGH), "--scrape", page.url + "@1s")
        both = raise_and_end(server, page)
        next(both)
        wait_until(theirs)
        alert = theirs()[0]
        assert alert["labels"]["alertname"] == "High" and alert["annotations"]["summary"] == "The queue has 9 <requests>."
        assert alert["status"]["state"] in ("active", "unprocessed") and alert["generatorURL"].endswith("/#/alarms?alarm=High")
        next(both)
        wait_until(lambda: theirs() == [])
    finally:
        process.terminate()
        process.wait(timeout=60)


class Mails:
    """aiosmtpd, with a password. Encrypted after STARTTLS, or from the start; then it knows AUTH LOGIN only."""

    def __init__(self, tls=None, from_the_start=False):
        from aiosmtpd.controller import Controller
        from aiosmtpd.smtp import SMTP, AuthResult

        self.got, mails = [], self

        class Handler:
            async def handle_DATA(self, server, session, envelope):
                mails.got.append((session.authenticated, envelope.mail_from, envelope.rcpt_tos, envelope.content.decode()))
                return "250 taken"

        def check(server, session, envelope, mechanism, data):
            return AuthResult(success=(data.login, data.password) == (b"user", b"pass word"))

        class Ours(Controller):
            def factory(self):
                later = tls if not from_the_start else None
                return SMTP(self.handler, authenticator=check, auth_require_tls=False, tls_context=later, require_starttls=later is not None,
                            auth_exclude_mechanism=["PLAIN"] if from_the_start else None)

        self.controller = Ours(Handler(), hostname="127.0.0.1", port=0, ssl_context=tls if from_the_start else None)
        # It tries to connect to its port, which it must know.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.controller.port = free.getsockname()[1]
        self.controller.start()
        self.port = self.controller.port

    def close(self):
        self.controller.stop()


@pytest.mark.parametrize("encrypted", ["none", "starttls", "tls"])
def test_mail_by_a_real_smtp_server(tmp_path, serve, page, encrypted):
    import base64
    import email

    context, more = None, f'tls = "{encrypted}"'
    if encrypted != "none":
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key.pem", "-out",
                        tmp_path / "cert.pem", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                        "-addext", "basicConstraints=critical,CA:FALSE"], check=True, capture_output=True)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        more += f'\nca_file = "{tmp_path}/cert.pem"'
    mails = Mails(context, encrypted == "tls")
    try:
        config = f"""
[[server.alarms.email]]
server = "localhost:{mails.port}"
from = "rollscope@example.com"
to = ["ops@example.com", "me@example.com"]
username = "user"
password = "pass word"
{more}
[[server.alarms.email]]
name = "wrong"
server = "localhost:{mails.port}"
from = "rollscope@example.com"
to = ["ops@example.com"]
username = "user"
password = "s3cret"
{more}
"""
        server = serve(None, *configured(tmp_path, config, HIGH.replace("<requests>", "Anfragen für dich")), "--scrape", page.url + "@1s")
        both = raise_and_end(server, page)
        next(both)
        wait_until(lambda: mails.got or sink(server, "email")["failed"])
        assert mails.got, sink(server, "email")
        wait_until(lambda: sink(server, "wrong")["failed"])
        next(both)
        wait_until(lambda: len(mails.got) == 2)
        for (known, sender, to, text), title in zip(mails.got, ["Firing: High", "Resolved: High"], strict=True):
            assert (known, sender, to) == (True, "rollscope@example.com", ["ops@example.com", "me@example.com"])
            mail = email.message_from_string(text)
            assert mail["subject"] == title
            assert "The queue has 9 Anfragen für dich." in mail.get_payload(decode=True).decode()
        wrong = sink(server, "wrong")
        assert wrong["sent"] == 0 and "username and password" in wrong["last_error"]
        assert not any(secret in json.dumps(wrong) for secret in ("s3cret", base64.b64encode(b"s3cret").decode()))
    finally:
        mails.close()


# --- Silences and the API ------------------------------------------------------------------------------------------------------


def test_a_silence_holds_alarms_back_over_restarts(tmp_path, serve, page, receiver):
    config = f'[[server.alarms.webhook]]\nurl = "{receiver.url}"\n'
    server = serve(None, *configured(tmp_path, config, HIGH), "--scrape", page.url + "@1s")
    made = server.post("/api/v1/alarms/silences", json={"selector": 'High{job!="other"}', "duration": "2h", "comment": "maintenance"})
    assert made.status_code == 201, made.text
    silence = made.json()
    server.kill()
    server.start()
    assert [s["id"] for s in alarms(server)["silences"]] == [silence["id"]]
    page.page = "queue 9\n"
    wait_until(lambda: states(server) == {"High": "firing"})
    answer = alarms(server)
    assert answer["alarms"][0]["silenced_by"] == silence["id"] and answer["firing"] == 0
    before = answer["rounds"]
    wait_until(lambda: alarms(server)["rounds"] > before + 3)
    assert receiver.got == []
    assert server.delete(f"/api/v1/alarms/silences/{silence['id']}").status_code == 204
    wait_until(lambda: receiver.statuses() == ["firing"])
    assert server.delete(f"/api/v1/alarms/silences/{silence['id']}").status_code == 404
    assert alarms(server)["firing"] == 1


def test_what_is_wrong_is_refused(tmp_path, serve):
    server = serve(None, *configured(tmp_path))
    for body, named in [
        ({"selector": "sum(x)", "duration": "2h"}, "selector"),
        ({"selector": "", "duration": "2h"}, "selector"),
        ({"selector": '{a=~"("}', "duration": "2h"}, "selector"),
        ({"selector": "A", "duration": "soon"}, "duration"),
        ({"selector": "A", "duration": "0s"}, "silence"),
        ({"selector": "A", "duration": "50y"}, "year"),
        ({"selector": "A", "duration": "2h", "coment": ""}, "coment"),
        ({"selector": "A", "duration": "2h", "comment": "x" * 1001}, "comment"),
    ]:
        answer = server.post("/api/v1/alarms/silences", json=body)
        assert answer.status_code == 400 and named in answer.json()["detail"], answer.text
    for params, named in [({"runn": "a"}, "runn"), ({"from": "soon"}, "from"), ({"history": "maybe"}, "history"),
                          ({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "from")]:
        answer = server.get("/api/v1/alarms", params=params)
        assert answer.status_code == 400 and named in answer.text, answer.text
    assert server.get("/prometheus/api/v1/rules", params={"type": "x"}).json()["errorType"] == "bad_data"


def test_a_token_that_may_only_read_may_not_silence(tmp_path, serve):
    (tmp_path / "tokens").write_text("read reader-token reader\nadmin admin-token admin\n")
    (tmp_path / "tokens").chmod(0o600)
    server = serve(None, *configured(tmp_path), "--token-file", str(tmp_path / "tokens"))
    ask = lambda token, method, path, **more: requests.request(method, server.url + path, headers={"authorization": f"Bearer {token}"},
                                                               timeout=30, **more).status_code
    body = {"selector": "A", "duration": "2h"}
    assert ask("reader-token", "GET", "/api/v1/alarms") == 200
    assert ask("reader-token", "POST", "/api/v1/alarms/silences", json=body) == 403
    assert ask("reader-token", "DELETE", "/api/v1/alarms/silences/x") == 403
    assert ask("admin-token", "POST", "/api/v1/alarms/silences", json=body) == 201
