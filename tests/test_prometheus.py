"""Prometheus itself is the judge: it and rollscope scrape the same page, and the same questions get the same answers."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from conftest import ROOT, wait_until
from exporter import Exporter

# What SGLang's own Grafana dashboards ask (examples/monitoring and its router's), with their variables filled in.
DASHBOARD = [
    f"histogram_quantile({q}, sum by (le) (rate(sglang_{name}_bucket[1m])))"
    for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds") for q in (0.99, 0.9, 0.5)
] + [
    f"avg(rate(sglang_{name}_sum[1m]) /  rate(sglang_{name}_count[1m]))\n"
    for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds")
] + [
    'sum(increase(sglang_e2e_request_latency_seconds_bucket{model_name=~".*"}[1m])) by (le)\n',
    'sum by(le) (increase(sglang_time_to_first_token_seconds_bucket{model_name=~".*"}[1m]))',
    "sglang_num_running_reqs", "sglang_gen_throughput", "sglang_cache_hit_rate", "sglang_num_queue_reqs",
]
ROUTER = [
    'sum(rate(sgl_router_worker_requests_total{model_id=~".*",worker_url=~".*"}[1m]))',
    '100 * sum(rate(sgl_router_worker_requests_total{outcome="error",model_id=~".*"}[1m])) / '
    'clamp_min(sum(rate(sgl_router_worker_requests_total{model_id=~".*"}[1m])), 1e-9)',
    "sum(sgl_router_worker_health)",
    'sum by (outcome) (rate(sgl_router_worker_requests_total{worker_url=~".*"}[1m]))',
    'histogram_quantile(0.9, sum by (le) (rate(sgl_router_ttft_seconds_bucket{model_id=~".*"}[1m])))',
    'sgl_router_active_load{kind="prefill_tokens",worker_url=~".*"}',
]
QUERIES = [
    "sglang:num_queue_reqs",
    'sglang:num_queue_reqs{engine_type=~"pre.*|dec.*", tp_rank!="1"}',
    "rate(sglang:prompt_tokens_total[4s])",
    "irate(sglang:prompt_tokens_total[4s])",
    "increase(sglang:num_requests_total[7s])",
    "delta(sglang:token_usage[5s])",
    "deriv(sglang:token_usage[5s])",
    "resets(sglang:prompt_tokens_total[20s])",
    "changes(sglang:num_running_reqs[5s])",
    "sum(sglang:num_running_reqs)",
    "avg by (engine_type) (sglang:gen_throughput)",
    "min without (tp_rank) (sglang:num_queue_reqs)",
    "max by (tp_rank, engine_type) (sglang:num_queue_reqs)",
    "count(sglang:num_queue_reqs > 5)",
    "stddev(sglang:gen_throughput)",
    "quantile by (tp_rank) (0.7, sglang:gen_throughput)",
    "topk(2, sglang:gen_throughput)",
    "bottomk by (tp_rank) (1, sglang:gen_throughput)",
    "count_values(\"n\", sglang:num_running_reqs)",
    "histogram_quantile(0.9, sum by (le) (rate(sglang:e2e_request_latency_seconds_bucket[5s])))",
    "histogram_quantile(0.5, rate(sglang:kv_transfer_speed_gb_s_bucket[5s]))",
    "rate(sglang:e2e_request_latency_seconds_sum[5s]) / rate(sglang:e2e_request_latency_seconds_count[5s])",
    "sglang:num_queue_reqs / on (engine_type, tp_rank) sglang:num_running_reqs",
    "sglang:prompt_tokens_total * on (engine_type) group_right () sglang:num_queue_reqs",
    "sglang:num_queue_reqs * on (instance) group_left () sum by (instance) (sglang:num_running_reqs)",
    "sglang:num_queue_reqs and sglang:num_running_reqs > 35",
    "sglang:num_queue_reqs unless on (tp_rank) sglang:num_queue_reqs{tp_rank=\"0\"}",
    "sglang:num_queue_reqs > 10 or sglang:num_queue_reqs < 3",
    "sglang:num_queue_reqs > bool 10",
    "100 * (1 - sglang:token_usage ^ 2) % 7",
    "-sglang:token_usage",
    "sglang:num_queue_reqs offset 3s",
    "rate(sglang:prompt_tokens_total[4s] offset 2s)",
    "sum_over_time(sglang:num_queue_reqs[5s])",
    "avg_over_time(sglang:cache_hit_rate[5s])",
    "min_over_time(sglang:cache_hit_rate[5s])",
    "max_over_time(sglang:num_queue_reqs[5s])",
    "quantile_over_time(0.8, sglang:gen_throughput[6s])",
    "stddev_over_time(sglang:gen_throughput[6s])",
    "last_over_time(sglang:num_queue_reqs[5s])",
    "count_over_time(sglang:num_queue_reqs[5s])",
    "present_over_time(sglang:num_queue_reqs[5s])",
    "max_over_time(rate(sglang:prompt_tokens_total[4s])[6s:1s])",
    "predict_linear(sglang:token_usage[6s], 10)",
    "absent(sglang:nothing{a=\"b\"})",
    "label_replace(sglang:num_queue_reqs, \"short\", \"$1\", \"engine_type\", \"(.)(.).*\")",
    "label_join(sglang:num_queue_reqs, \"both\", \"-\", \"engine_type\", \"tp_rank\")",
    "clamp(sglang:num_queue_reqs, 2, 8)",
    "round(sglang:gen_throughput, 0.5)",
    "abs(-sglang:token_usage) + ceil(sglang:token_usage) - floor(sglang:token_usage) + sqrt(sglang:token_usage)",
    "scalar(sum(sglang:num_queue_reqs)) + time()",
    "vector(3)",
    "timestamp(sglang:num_queue_reqs)",
    "hour() + minute() + day_of_week() + month() + year() + days_in_month()",
    "sgn(sglang:num_queue_reqs - 5)",
    "group by (engine_type) (sglang:num_queue_reqs)",
]


def installed():
    """Debian's prometheus, installed if it is not there."""
    if not shutil.which("prometheus"):
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", "prometheus"], capture_output=True)
    if not shutil.which("prometheus"):
        pytest.fail("Debian's package prometheus (with promtool) is not here, and apt-get cannot install it")


class Prometheus:
    def __init__(self, folder, exporter, interval="1s", binary="prometheus", flags=(), **config):
        folder.mkdir()
        (folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": interval, "scrape_timeout": interval},
            "scrape_configs": [{"job_name": "sglang", "static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}]}],
            **config}))
        for _ in range(5):
            import socket
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            self.process = subprocess.Popen(
                [binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address=127.0.0.1:{port}", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                wait_until(lambda: self.process.poll() is not None or self.ready(), 60)
            except AssertionError:
                pass
            if self.process.poll() is None:
                return
        raise AssertionError("prometheus did not start")

    def ready(self):
        try:
            return requests.get(self.url + "/-/ready", timeout=5).ok
        except requests.ConnectionError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)


def ask(base, path, **params):
    answer = requests.post(f"{base}/api/v1/{path}", data=params, timeout=60).json()
    assert answer["status"] == "success", (params, answer)
    return answer["data"]


def rows(data):
    """Series by labels; points by milliseconds."""
    if data["resultType"] in ("scalar", "string"):
        return {"": {round(data["result"][0] * 1000): float(data["result"][1])}}
    out = {}
    for series in data["result"]:
        points = series.get("values") or [series["value"]]
        out[json.dumps(series["metric"], sort_keys=True)] = {round(t * 1000): float(v) for t, v in points}
    return out


def same(ours, theirs, query):
    assert ours.keys() == theirs.keys(), (query, ours.keys() ^ theirs.keys())
    for labels, points in theirs.items():
        assert ours[labels].keys() == points.keys(), (query, labels)
        for t, value in points.items():
            got = ours[labels][t]
            assert (math.isnan(value) and math.isnan(got)) or value == got or math.isclose(
                value, got, rel_tol=1e-9, abs_tol=1e-12), (query, labels, t, value, got)


@pytest.fixture
def both(tmp_path, serve):
    """Prometheus and rollscope over one page whose samples are the same for both; three restarts of engines on the way."""
    installed()
    exporter = Exporter(times=True)
    prometheus = Prometheus(tmp_path / "prometheus", exporter)
    server = serve(None, "--scrape-config", tmp_path / "prometheus" / "prometheus.yml")

    def seen(base):
        """Has it taken the page as it is now?"""
        found = ask(base, "query", query="max(timestamp(sglang:kv_transfer_speed_gb_s_count))")["result"]
        return found and round(float(found[0]["value"][1]) * 1000) == exporter.times[-1]

    for tick in range(32):
        wait_until(lambda: seen(prometheus.url) and seen(server.url + "/prometheus"), 60)
        exporter.advance({10: 0, 17: 2, 24: 0}.get(tick))
    yield exporter, prometheus, server
    prometheus.stop()
    exporter.close()


def apart(times, ticks):
    """No tick lies exactly at the edge of a window: Prometheus 2 counts that sample, Prometheus 3 and rollscope do not."""
    ranges = [s * 1000 for s in (2, 3, 4, 5, 6, 7, 9, 20, 300)]
    return all(t % 1000 and all(t - r not in ticks for r in ranges) for t in times)


def test_the_same_answers_as_prometheus(both):
    exporter, prometheus, server = both
    ours = server.url + "/prometheus"
    # The last tick may still be on its way to one of them.
    ticks = exporter.times[:-2]
    start = ticks[4] + 333
    step = 617
    end = ticks[-1]
    while not apart(range(start, end, step), set(ticks)):
        start += 1
    span = {"start": start / 1000, "end": (end - 1) / 1000, "step": step / 1000}
    wait_until(lambda: len(rows(ask(ours, "query_range", query="sglang:num_queue_reqs", **span))) == 6)
    for query in QUERIES:
        theirs = rows(ask(prometheus.url, "query_range", query=query, **span))
        same(rows(ask(ours, "query_range", query=query, **span)), theirs, query)
        if not query.startswith(("absent", "sglang:num_queue_reqs unless")):
            assert theirs, query
    at = ticks[-3] + 11
    while not apart([at], set(ticks)):
        at += 1
    for query in QUERIES + ["sglang:num_queue_reqs[5s]", "sort(sglang:gen_throughput)", '"text"', "1 + 1"]:
        theirs = ask(prometheus.url, "query", query=query, time=at / 1000)
        found = ask(ours, "query", query=query, time=at / 1000)
        assert found["resultType"] == theirs["resultType"], query
        if theirs["resultType"] == "string":
            assert found["result"][1] == theirs["result"][1]
            continue
        same(rows(found), rows(theirs), query)

    # Names, values and series.
    match = {"match[]": '{__name__=~"sglang.*"}'}
    assert ask(ours, "labels", **match) == ask(prometheus.url, "labels", **match)
    for label in ("engine_type", "le", "__name__", "job"):
        get = lambda base: requests.get(f"{base}/api/v1/label/{label}/values", params=match, timeout=60).json()["data"]
        assert get(ours) == get(prometheus.url), label
    by = lambda series: sorted(json.dumps(s, sort_keys=True) for s in series)
    assert by(ask(ours, "series", **match)) == by(ask(prometheus.url, "series", **match))
    kinds = requests.get(ours + "/api/v1/metadata", timeout=60).json()["data"]
    theirs = requests.get(prometheus.url + "/api/v1/metadata", timeout=60).json()["data"]
    types = lambda answer: {name: entries[0]["type"] for name, entries in answer.items() if name.startswith("sglang")}
    assert types(kinds) == types(theirs) and types(theirs)


def test_both_see_series_and_targets_go(tmp_path, serve):
    installed()
    exporter = Exporter()
    prometheus = Prometheus(tmp_path / "prometheus", exporter, interval="1s")
    server = serve(None, "--scrape-config", tmp_path / "prometheus" / "prometheus.yml")
    bases = [prometheus.url, server.url + "/prometheus"]

    def counts(query):
        return [len(ask(base, "query", query=query)["result"]) for base in bases]

    try:
        wait_until(lambda: counts("sglang:num_queue_reqs") == [6, 6])
        exporter.leave_out = ("num_queue_reqs",)
        # Stale at once, not after five minutes.
        wait_until(lambda: counts("sglang:num_queue_reqs") == [0, 0])
        assert counts("sglang:num_running_reqs") == [6, 6]
        exporter.leave_out = ()
        wait_until(lambda: counts("sglang:num_queue_reqs") == [6, 6])
        exporter.status = 503
        wait_until(lambda: counts("sglang:num_running_reqs") == [0, 0])
        for base in bases:
            assert [r["value"][1] for r in ask(base, "query", query="up")["result"]] == ["0"]
        target = server.get("/api/v1/scrape").json()["targets"][0]
        assert target["up"] is False and "503" in target["problem"] and target["failures"] >= 1
        assert any("down" in p for p in server.get("/api/v1/health").json()["problems"])
        assert "rollscope_scrape_targets_down 1" in server.get("/metrics").text
        exporter.status = 200
        wait_until(lambda: counts("up == 1") == [1, 1])
        wait_until(lambda: counts("sglang:num_running_reqs") == [6, 6])
        # Both say of a scrape what it brought.
        for base in bases:
            scraped = ask(base, "query", query="scrape_samples_scraped")["result"][0]["value"][1]
            assert int(scraped) == 3 * (10 + 2 + 3 * 10)
    finally:
        prometheus.stop()
        exporter.close()


def test_every_query_of_sglangs_dashboards(serve):
    exporter = Exporter(names="sglang_")
    server = serve(None, "--scrape", exporter.url + "@200ms")
    ours = server.url + "/prometheus"
    try:
        ready = "sum(increase(sglang_e2e_request_latency_seconds_count[1m]))"
        wait_until(lambda: server.get("/api/v1/scrape").json()["targets"][0]["scrapes"] > 5)
        exporter.advance()
        wait_until(lambda: any(float(r["value"][1]) > 0 for r in ask(ours, "query", query=ready)["result"]))
        now = time.time()
        for query in DASHBOARD:
            assert ask(ours, "query_range", query=query, start=now - 60, end=now, step="5s")["result"], query
        for query in ROUTER:
            ask(ours, "query_range", query=query, start=now - 60, end=now, step="5s")
        for label in ("instance", "model_name"):
            values = requests.get(f"{ours}/api/v1/label/{label}/values", timeout=30).json()["data"]
            assert len(values) == 1, values
    finally:
        exporter.close()


def test_promtool_accepts_what_we_say(serve, tmp_path):
    installed()
    exporter = Exporter()
    server = serve(None, "--scrape", exporter.url + "@1s", "--steps", "2", "--samples", "8", command="demo")
    try:
        wait_until(lambda: server.get("/api/v1/scrape").json()["targets"][0]["scrapes"] > 1)
        wait_until(lambda: server.get("/metrics/run/demo").ok)
        check = lambda path: subprocess.run(
            ["promtool", "check", "metrics"], input=server.get(path).text, capture_output=True, text=True)
        checked = check("/metrics")
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
        # 3: it reads well, but a name that the run chose is not to promtool's taste.
        checked = check("/metrics/run/demo")
        assert checked.returncode in (0, 3), checked.stderr
        asked = subprocess.run(["promtool", "query", "instant", server.url + "/prometheus", "up"], capture_output=True, text=True)
        assert asked.returncode == 0 and "=> 1" in asked.stdout, asked
        listed = subprocess.run(["promtool", "query", "labels", server.url + "/prometheus", "job"], capture_output=True, text=True)
        assert "rollscope" in listed.stdout, listed
    finally:
        exporter.close()


def test_bad_questions_and_bad_pages(serve):
    exporter = Exporter()
    server = serve(None, "--scrape", exporter.url + "@3s")
    ours = server.url + "/prometheus/api/v1"
    try:
        for path, params, status, words in [
            ("query", {"query": "sum("}, 400, "invalid parameter"),
            ("query", {"query": "holt_winters(a[1m], 0.1, 0.1)"}, 400, "holt_winters"),
            ("query", {"query": "histogram_avg(a)"}, 422, "histogram_avg"),
            ("query", {"query": "a", "time": "soon"}, 400, "timestamp"),
            ("query_range", {"query": "a", "start": 0, "end": 1e6, "step": 1}, 400, "11,000"),
            ("query_range", {"query": "a", "start": 2, "end": 1, "step": 1}, 400, "end"),
            ("query_range", {"query": "a", "start": 1, "end": 2, "step": 0}, 400, "step"),
            ("query_range", {"query": "a[1m]", "start": 1, "end": 2, "step": 1}, 400, "range"),
            ("query", {"query": '{a="b" or c="d"}'}, 400, "or"),
            ("query", {"query": "histogram_sum(a)"}, 422, "name_sum"),
            ("query", {"query": "a", "limit": "-1"}, 400, "limit"),
            ("query", {"query": "a", "limit": "many"}, 400, "limit"),
            ("query_range", {"query": "a", "start": 1, "end": 2, "step": 1, "limit": "1.5"}, 400, "limit"),
            ("series", {"match[]": "a", "limit": "x"}, 400, "limit"),
            ("labels", {"limit": "x"}, 400, "limit"),
            ("label/job/values", {"limit": "x"}, 400, "limit"),
            ("metadata", {"limit": "x"}, 400, "limit must be a number"),
            ("query", {"query": "a", "timeout": "x"}, 400, "timeout"),
            ("series", {}, 400, "match[]"),
            ("targets", {}, 404, "targets"),
        ]:
            answer = requests.get(f"{ours}/{path}", params=params, timeout=30)
            body = answer.json()
            assert (answer.status_code, body["status"]) == (status, "error"), (path, params, answer.text)
            assert words.replace(",", "") in body["error"].replace(",", ""), body
            assert body["errorType"] == {400: "bad_data", 404: "not_found", 422: "execution"}[status], body
        target = lambda: server.get("/api/v1/scrape").json()["targets"][0]
        wait_until(lambda: target()["up"] is True)
        exporter.page = "good 1\nbad line here too\ntwice 1\ntwice 2\nlate 1 1000\n"
        wait_until(lambda: target()["bad_lines"] > 0 and target()["duplicates"] > 0)
        assert target()["up"] is True and "line 2" in target()["problem"]
        exporter.page = "".join(f'a{{id="{i}"}} 1\n' for i in range(200_001))
        wait_until(lambda: target()["up"] is False and "max_samples" in target()["problem"], 60)
        exporter.page = "<html>not for you</html>"
        wait_until(lambda: "not Prometheus text" in (target()["problem"] or ""))
    finally:
        exporter.close()
    wait_until(lambda: "refused" in (target()["problem"] or "").lower())


# Questions that are wrong, each in its own way.
WRONG = [
    ("query", {"query": query}) for query in [
        "", "sum(", "no_such_function(a)", "rate(a)", "rate(a[5m]", "a[5m] + 1", "sum(a[5m])", "1 > 2", "a and 1", "{}", '{a=""}',
        "a{b=~\"(\"}", "a{__name__=\"b\"}", "topk(a)", "topk(\"x\", a)", "label_replace(a, \"b\")", "a[5m][5m]", "\"x\" + 1",
        "a offset b", "a bool + b", "vector(\"x\")", "abs()", "quantile(0.5)", "a @ foo", "histogram_quantile(a)",
        "a * on (x) group_left group_right b", "1[5m]", "-\"x\"", "a offset 1e300", "a[1e300:1]", "a unless on (x) group_left () b", "count_values(1, a)",
        # These fail only when they are worked out.
        "label_replace(up, \"1\", \"$1\", \"job\", \"(.*)\")", "label_replace(up, \"a\", \"$1\", \"job\", \"(\")",
        "label_join(up, \"0x\", \"-\", \"job\")", "{__name__=~\"sglang:num_.*\"} / on (job) {__name__=~\"sglang:num_.*\"}",
        "rate({__name__=~\"sglang:num_.*\"}[1m])",
    ]
] + [
    ("query", {"query": "up", "time": "soon"}), ("query", {"query": "up", "timeout": "soon"}), ("query", {}),
    ("query_range", {"query": "up[1m]", "start": 1, "end": 2, "step": 1}),
    ("query_range", {"query": "\"x\"", "start": 1, "end": 2, "step": 1}),
    ("query_range", {"query": "up", "start": 2, "end": 1, "step": 1}),
    ("query_range", {"query": "up", "start": 1, "end": 2, "step": 0}),
    ("query_range", {"query": "up", "start": 1, "end": 2, "step": -1}),
    ("query_range", {"query": "up", "start": 1, "end": 2, "step": "x"}),
    ("query_range", {"query": "up", "start": 1, "end": 2}), ("query_range", {"query": "up", "end": 2, "step": 1}),
    ("query_range", {"query": "up", "start": 0, "end": 1e6, "step": 1}),
    ("query_range", {"query": "up", "start": 1, "end": 2, "step": 1, "timeout": "x"}),
    ("series", {}), ("series", {"match[]": "{}"}), ("series", {"match[]": "a["}), ("series", {"match[]": "rate(a[1m])"}),
    ("series", {"match[]": "a", "start": "x"}), ("labels", {"match[]": "{}"}), ("labels", {"end": "x"}),
    ("label/job/values", {"match[]": "a["}), ("label/job/values", {"start": "x"}), ("metadata", {"limit": "x"}),
]


def test_wrong_questions_get_prometheus_own_kind_of_error(tmp_path, serve):
    installed()
    exporter = Exporter()
    prometheus = Prometheus(tmp_path / "prometheus", exporter)
    server = serve(None, "--scrape-config", tmp_path / "prometheus" / "prometheus.yml")
    bases = [server.url + "/prometheus", prometheus.url]
    try:
        for base in bases:
            wait_until(lambda: len(ask(base, "query", query="count_over_time(sglang:num_running_reqs[1m]) > 2")["result"]) == 6)
        differ = []
        for path, params in WRONG:
            ours, theirs = [requests.get(f"{base}/api/v1/{path}", params=params, timeout=60) for base in bases]
            kind = lambda answer: (answer.status_code, answer.json().get("errorType"))
            if kind(ours) != kind(theirs):
                differ.append((path, params, kind(ours), kind(theirs), ours.text, theirs.text))
        assert not differ, "\n".join(map(str, differ))
    finally:
        prometheus.stop()
        exporter.close()


def test_no_more_results_than_the_limit(serve):
    exporter = Exporter()
    server = serve(None, "--scrape", exporter.url + "@200ms")
    ours = server.url + "/prometheus/api/v1/"
    get = lambda path, **params: requests.get(ours + path, params=params, timeout=60).json()
    try:
        wait_until(lambda: len(get("query", query="sglang:num_queue_reqs")["data"]["result"]) == 6)
        now = time.time()
        results = {
            "query": (dict(query="sglang:num_queue_reqs"), 6, lambda data: data["result"]),
            "query ": (dict(query="sglang:num_queue_reqs[1m]"), 6, lambda data: data["result"]),
            "query_range": (dict(query="sglang:num_queue_reqs", start=now - 1, end=now, step=1), 6, lambda data: data["result"]),
            "series": ({"match[]": "sglang:num_queue_reqs"}, 6, lambda data: data),
            "labels": ({"match[]": "sglang:num_queue_reqs"}, 6, lambda data: data),
            "label/__name__/values": ({"match[]": '{__name__=~"sglang:num.*"}'}, 3, lambda data: data),
        }
        for path, (params, count, results_of) in results.items():
            path = path.strip()
            for all_of_them in ({}, {"limit": "0"}, {"limit": str(count)}, {"limit": "1000"}):
                answer = get(path, **params, **all_of_them)
                assert len(results_of(answer["data"])) == count and "warnings" not in answer, (path, answer)
            whole = results_of(get(path, **params)["data"])
            answer = get(path, **params, limit=2)
            assert answer["warnings"] == ["results truncated due to limit"], (path, answer)
            assert len(results_of(answer["data"])) == 2 and all(
                one in whole or one["metric"] in [w["metric"] for w in whole] for one in results_of(answer["data"])), path
        assert len(get("metadata", limit=2)["data"]) == 2 and get("metadata", limit=0)["data"] == {}
        assert len(get("metadata", limit=-1)["data"]) > 10
    finally:
        exporter.close()


def test_functions_of_classic_histograms_and_first_over_time(serve):
    exporter = Exporter(times=True)
    server = serve(None, "--scrape", exporter.url + "@100ms")
    ours = server.url + "/prometheus"
    one = lambda query, **more: rows(ask(ours, "query", query=query, time=at / 1000, **more))
    seen = lambda: ask(ours, "query", query="max(timestamp(sglang:num_queue_reqs))")["result"]
    try:
        for _ in range(8):
            exporter.advance()
            at = exporter.times[-1]
            wait_until(lambda: seen() and round(float(seen()[0]["value"][1]) * 1000) == at)
        # As the samples have it.
        samples = rows(ask(ours, "query", query="sglang:num_queue_reqs[1m]", time=at / 1000))
        assert {k: min(v) for k, v in samples.items()} and len(next(iter(samples.values()))) >= 8
        first = one("first_over_time(sglang:num_queue_reqs[1m])")
        assert {k: list(v.values())[0] for k, v in first.items()} == {k: v[min(v)] for k, v in samples.items()}

        # As many as the series that counts them says.
        base = "sglang:e2e_request_latency_seconds"
        plain = lambda found: {json.dumps({k: v for k, v in json.loads(labels).items() if k != "__name__"}, sort_keys=True): list(p.values())[0]
                               for labels, p in found.items()}
        assert plain(one(f"histogram_count({base}_bucket)")) == plain(one(f"{base}_count"))
        assert plain(one(f"histogram_count(sum by (le) ({base}_bucket))")) == plain(one(f"sum({base}_count)"))
        rate = plain(one(f"histogram_count(increase({base}_bucket[1m]))"))
        assert rate == plain(one(f"increase({base}_count[1m])")) and rate

        # A share: at a bound it is the bucket's; within a bucket it is linear; it undoes the quantile.
        share = lambda low, high: plain(one(f"histogram_fraction({low}, {high}, sum by (le) ({base}_bucket))"))["{}"]
        bucket = lambda le: plain(one(f'sum({base}_bucket{{le="{le}"}})'))["{}"]
        total = bucket("+Inf")
        assert math.isclose(share(0, 0.5), bucket("0.5") / total)
        assert math.isclose(share(0.5, 2.5), (bucket("2.5") - bucket("0.5")) / total)
        assert math.isclose(share(0.5, 0.75), (bucket("1.0") - bucket("0.5")) / 2 / total)
        assert share("-Inf", "+Inf") == 1 and share(2, 2) == 0 and share(3, 1) == 0 and math.isnan(share("NaN", 1))
        assert math.isclose(share(0, 100), bucket("10.0") / total), "nothing is known beyond the last bound"
        median = plain(one(f"histogram_quantile(0.5, sum by (le) ({base}_bucket))"))["{}"]
        assert math.isclose(share(0, median), 0.5)

        # A bare subquery is a matrix, as in Prometheus.
        answer = ask(ours, "query", query="sum(sglang:num_running_reqs)[10s:100ms]", time=at / 1000)
        assert answer["resultType"] == "matrix" and len(answer["result"]) == 1
    finally:
        exporter.close()


def test_a_query_however_long_does_not_end_the_server(server):
    ask = lambda query: requests.post(server.url + "/prometheus/api/v1/query", data={"query": query}, timeout=120)
    for query in ["1" + "+1" * 30_000, "a" + " or a" * 10_000, "-" * 60_000 + "1", "(" * 30_000 + "1" + ")" * 30_000,
                  "# \"\n1" + "^1" * 30_000, "1" + "+1" * 400]:
        answer = ask(query)
        assert (answer.status_code, answer.json()["errorType"]) in [(400, "bad_data"), (422, "execution")], answer.text
    assert ask("1" + "+1" * 90).json()["data"]["result"][1] == "91"
    assert server.process.poll() is None


def test_a_subquery_is_bounded_like_a_range(server):
    query = lambda text, **more: requests.get(
        server.url + "/prometheus/api/v1/query", params={"query": text, **more}, timeout=120)
    # As many steps as a range may have are worked out.
    assert query("count_over_time(vector(1)[11000s:1s])").json()["data"]["result"][0]["value"][1] == "11000"
    before = server.memory()
    for text in [
        "count_over_time(vector(1)[10y:1s])",
        "count_over_time(vector(1)[10y:1s] @ 1e9)",
        "count_over_time(vector(1)[10y:1s] @ end() offset 3y)",
        "count_over_time(vector(1)[10y:1s] offset -3y)",
        "sum_over_time(count_over_time(vector(1)[10y:1s])[5m:1m])",
        "sum_over_time(count_over_time(vector(1)[5m:1m])[10y:1s])",
        "sum_over_time(count_over_time(vector(1)[3h:1s])[10000h:1h])",
        "max_over_time(max_over_time(max_over_time(vector(1)[3h:1s])[400d:1h])[10y:1d])",
        "absent_over_time(nothing[10y:1ms])",
        "rate(nothing[10y:1ms])",
        "vector(1)[10y:1s]",
    ]:
        answer = query(text)
        assert (answer.status_code, answer.json()["errorType"]) == (422, "execution"), (text, answer.text[:500])
        assert "promql_max_" in answer.json()["error"], (text, answer.text)
    over = lambda text: requests.get(server.url + "/prometheus/api/v1/query_range", timeout=120,
                                     params={"query": text, "start": 0, "end": 10_000, "step": 1})
    assert over("count_over_time(vector(1)[10y:1s])").status_code == 422
    assert server.memory() - before < 100, (before, server.memory())
    # A series for every value there is: refused when the room for values is full, which is half a gigabyte.
    for answer in [over("count_values(\"v\", vector(time()))"), query("count_over_time(count_values(\"v\", vector(time()))[3h:1s])")]:
        assert (answer.status_code, answer.json()["errorType"]) == (422, "execution"), answer.text[:500]
    assert server.memory() - before < 900, (before, server.memory())
    assert server.get("/healthz").ok


CLIENTS = ["0.20.0", "0.22.1", "0.26.0"]


def prometheus_client(version):
    """A folder with that version of the Python client, kept for the next time."""
    folder = ROOT / "target" / "test-clients" / f"prometheus_client-{version}"
    if not (folder / "prometheus_client").exists():
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder,
                               f"prometheus_client=={version}"], capture_output=True, text=True)
        assert done.returncode == 0, f"cannot install prometheus_client {version}: {done.stderr}"
    return folder


def test_every_version_of_the_python_client_gives_the_same_series(serve):
    processes, ports = [], {}
    try:
        for version in CLIENTS:
            for way in ("http", "asgi"):
                process = subprocess.Popen(
                    [sys.executable, Path(__file__).parent / "prometheus_clients.py", way], stdout=subprocess.PIPE, text=True,
                    env={**os.environ, "PYTHONPATH": str(prometheus_client(version))})
                processes.append(process)
                ports[version, way] = int(process.stdout.readline())
        flags = [flag for port in ports.values() for flag in ("--scrape", f"http://127.0.0.1:{port}/metrics@500ms")]
        server = serve(None, *flags)
        targets = lambda: server.get("/api/v1/scrape").json()["targets"]
        wait_until(lambda: len(targets()) == len(ports) and all(t["up"] and t["scrapes"] > 1 for t in targets()), 60)
        assert [t["problem"] for t in targets()] == [None] * len(ports)
        found = {}
        for key, port in ports.items():
            # A scrape that took too long on a busy machine leaves stale markers, which are NaN.
            series = server.sql("select distinct name, kind, labels, value from series where not isnan(value) "
                                f"and target = '127.0.0.1:{port}' and name like 'sglang%' and name not like '%\\_created'")
            without = lambda labels: {k: v for k, v in json.loads(labels).items() if k not in ("instance", "job")}
            found[key] = sorted((name, kind, json.dumps(without(labels), sort_keys=True), value)
                                for name, kind, labels, value in series)
        model = json.dumps({"model_name": "qwen", "tp_rank": "0"})
        bucket = lambda le: json.dumps({"le": le, "model_name": "qwen", "tp_rank": "0"})
        want = sorted([
            ("sglang:num_running_reqs", "gauge", model, 7.0), ("sglang:gen_throughput", "gauge", "{}", 123.5),
            ("sglang:prompt_tokens_total", "counter", model, 42.0),
            *[("sglang:e2e_request_latency_seconds_bucket", "histogram", bucket(le), n)
              for le, n in [("0.5", 1.0), ("1.0", 2.0), ("5.0", 3.0), ("+Inf", 4.0)]],
            ("sglang:e2e_request_latency_seconds_count", "histogram", model, 4.0),
            ("sglang:e2e_request_latency_seconds_sum", "histogram", model, 12.9),
            ("sglang:func_latency_seconds_count", "summary", "{}", 1.0), ("sglang:func_latency_seconds_sum", "summary", "{}", 2.5),
        ])
        for key, series in found.items():
            assert series == want, key
        answer = ask(server.url + "/prometheus", "query", query="sglang:num_running_reqs")["result"]
        assert len(answer) == len(ports)
    finally:
        for process in processes:
            process.terminate()
            process.wait(timeout=30)
            process.stdout.close()
