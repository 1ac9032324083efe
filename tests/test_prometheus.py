"""Prometheus itself is the judge: it and rollscope scrape the same page, and the same questions get the same answers."""

import json
import math
import shutil
import subprocess
import time

import pytest
import requests

from conftest import wait_until
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
        pytest.skip("Debian's package prometheus is not here, and apt-get cannot install it")


class Prometheus:
    def __init__(self, folder, exporter, interval="1s"):
        folder.mkdir()
        (folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": interval, "scrape_timeout": interval},
            "scrape_configs": [{"job_name": "sglang", "static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}]}]}))
        for _ in range(5):
            import socket
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
    ranges = [s * 1000 for s in (2, 3, 4, 5, 6, 7, 20, 300)]
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
    for name, entries in theirs.items():
        if name.startswith("sglang"):
            assert kinds[name][0]["type"] == entries[0]["type"], name


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
        for path in ("/metrics/run/demo", "/metrics"):
            page = server.get(path).text
            checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True)
            # 3: it reads well, but a name is not to promtool's taste.
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
            ("query_range", {"query": "a[1m]", "start": 1, "end": 2, "step": 1}, 422, "range"),
            ("series", {}, 400, "match[]"),
            ("rules", {}, 404, "rules"),
        ]:
            answer = requests.get(f"{ours}/{path}", params=params, timeout=30)
            body = answer.json()
            assert (answer.status_code, body["status"]) == (status, "error"), (path, params, answer.text)
            assert words.replace(",", "") in body["error"].replace(",", ""), body
        target = lambda: server.get("/api/v1/scrape").json()["targets"][0]
        wait_until(lambda: target()["up"] is True)
        exporter.page = "good 1\nbad line here too\ntwice 1\ntwice 2\nlate 1 1000\n"
        wait_until(lambda: target()["bad_lines"] > 0 and target()["duplicates"] > 0)
        assert target()["up"] is True and "line 2" in target()["problem"]
        exporter.page = "".join(f'a{{id="{i}"}} 1\n' for i in range(200_001))
        wait_until(lambda: target()["up"] is False and "max_samples" in target()["problem"], 60)
        exporter.page = "<html>not for you</html>"
        wait_until(lambda: "no Prometheus text" in (target()["problem"] or ""))
    finally:
        exporter.close()
    wait_until(lambda: "refused" in (target()["problem"] or "").lower())
