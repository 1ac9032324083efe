"""Metrics of delta temporality, as the real OpenTelemetry SDK sends them, asked through Prometheus's API."""

import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from conftest import run, sql


class Proxy:
    """Between the SDK and the server: remembers what was sent, and loses answers when told to, so that the SDK tries again."""

    def __init__(self, server):
        self.server, self.sent, self.lose = server, [], 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                kept = {k: v for k, v in self.headers.items() if k.lower() in ("content-type", "content-encoding")}
                proxy.sent.append((body, kept))
                answer = proxy.again(-1)
                status, content = answer.status_code, answer.content
                if proxy.lose:
                    proxy.lose, status, content = proxy.lose - 1, 503, b""
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1/metrics"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def again(self, n):
        body, headers = self.sent[n]
        return requests.post(self.server.http + "/v1/metrics", data=body, headers=headers, timeout=30)

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def provider(exporter, **resource):
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf)
    attributes = {"service.name": "trainer", "rl.run.id": "delta", **resource}
    return MeterProvider([reader], resource=Resource(attributes), shutdown_on_exit=False)


def last(server, name):
    """The last sample: value and time."""
    rows = server.sql(f"select value, time_ns from series where name = '{name}' order by time_ns desc limit 1")
    return rows[0] if rows else None


def ask(server, query, at_ns):
    params = {"query": query, "time": at_ns // 1_000_000 / 1000}
    answer = requests.get(server.url + "/prometheus/api/v1/query", params=params, timeout=60).json()
    assert answer["status"] == "success", answer
    return {tuple(sorted((k, v) for k, v in r["metric"].items() if k in ("le", "kind"))): float(r["value"][1])
            for r in answer["data"]["result"]}


@pytest.fixture(params=["http", "grpc"])
def exporter(request, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")

    def start(server):
        if request.param == "grpc":
            return GrpcExporter(endpoint=server.grpc_target, insecure=True)
        return HttpExporter(endpoint=server.http + "/v1/metrics")
    return start


def test_rates_of_deltas(server, exporter):
    metrics = provider(exporter(server))
    meter = metrics.get_meter("test")
    requests_, latency = meter.create_counter("requests"), meter.create_histogram("latency")
    load = meter.create_up_down_counter("load")
    for i in range(6):
        requests_.add(10, {"kind": "a"})
        requests_.add(1 + i, {"kind": "b"})
        load.add(2)
        for seconds in (3, 7, 30):
            latency.record(seconds)
        assert metrics.force_flush()
        time.sleep(0.02)
    _, at = last(server, "requests")
    assert ask(server, "requests", at) == {(("kind", "a"),): 60, (("kind", "b"),): 21}
    assert ask(server, "load", at) == {(): 12}
    # Exact: the series begins with a sample of zero, and is asked at its last one.
    increase = ask(server, "increase(requests[10m])", at)
    assert {k: round(v, 6) for k, v in increase.items()} == {(("kind", "a"),): 60, (("kind", "b"),): 21}
    assert all(v > 0 for v in ask(server, "rate(requests[10m])", at).values())
    assert ask(server, "resets(requests[10m])", at) == {(("kind", "a"),): 0, (("kind", "b"),): 0}
    assert round(sum(ask(server, "increase(latency_count[10m])", at).values()), 6) == 18
    assert round(sum(ask(server, "increase(latency_sum[10m])", at).values()), 6) == 240
    buckets = {dict(k)["le"]: round(v, 6) for k, v in ask(server, "increase(latency_bucket[10m])", at).items()}
    assert (buckets["0"], buckets["5"], buckets["10"], buckets["50"], buckets["+Inf"]) == (0, 6, 12, 18, 18)
    kinds = dict(server.sql("select distinct name, kind from series"))
    assert (kinds["requests"], kinds["latency_bucket"], kinds["load"]) == ("counter", "histogram", "gauge")
    metrics.shutdown()


def test_exponential_histograms_of_deltas(server, exporter, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "base2_exponential_bucket_histogram")
    metrics = provider(exporter(server))
    latency = metrics.get_meter("test").create_histogram("latency")
    # Every export chooses its scale and its buckets anew.
    exports = [[1.0], [100.0, 0.0], [1.1, 1.2, 900.0], [0.001], [7.0, 0.0], [50.0] * 20]
    for values in exports:
        for v in values:
            latency.record(v)
        assert metrics.force_flush()
        time.sleep(0.02)
    everything = sorted(v for values in exports for v in values)
    _, at = last(server, "latency_count")
    assert ask(server, "latency_count", at) == {(): len(everything)}
    buckets = sorted((float(dict(k)["le"]), v) for k, v in ask(server, "latency_bucket", at).items())
    assert len(buckets) > 10
    for le, count in buckets:
        assert count == sum(v <= le * (1 + 1e-9) for v in everything), le
    assert buckets[-1] == (math.inf, len(everything))
    # Rates work too: most of what was recorded is in one bucket.
    median = ask(server, "histogram_quantile(0.5, increase(latency_bucket[10m]))", at)[()]
    assert abs(median - 50) / 50 < 0.1
    metrics.shutdown()


def test_retries_add_nothing_also_after_a_restart(server, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    proxy = Proxy(server)

    def start():
        metrics = provider(HttpExporter(endpoint=proxy.url))
        meter = metrics.get_meter("test")
        return metrics, meter.create_counter("requests"), meter.create_histogram("latency")

    metrics, counter, latency = start()

    def export():
        counter.add(10)
        latency.record(3)
        assert metrics.force_flush()
        time.sleep(0.02)

    def again(n):
        answer = proxy.again(n)
        assert answer.status_code == 200, answer.text
        return answer.content

    for lost in (0, 1, 0):
        proxy.lose = lost
        export()
    assert len(proxy.sent) == 4, "the SDK sent one of them twice"
    assert last(server, "requests")[0] == 30
    for n in (3, 0, 1, 3):
        assert again(n) == b"", "a retry is no partial success"
    assert last(server, "requests")[0] == 30

    # The answer was lost, and the server with it: the same message comes to the next one.
    server.kill()
    server.start()
    again(3)
    assert last(server, "requests")[0] == 30
    # The program goes on, and so do its totals.
    metrics, counter, latency = start()
    export()
    value, at = last(server, "requests")
    assert value == 40
    assert ask(server, "latency_count", at) == {(): 4}
    assert round(ask(server, "increase(requests[10m])", at)[()], 6) == 40
    assert round(ask(server, "increase(latency_bucket[10m])", at)[(("le", "5"),)], 6) == 4
    assert ask(server, "resets(requests[10m])", at) == {(): 0}
    metrics.shutdown()
    proxy.close()


def delta(value, start, end, name="requests", monotonic=True):
    return {"resourceMetrics": [{
        "resource": {"attributes": [{"key": "rl.run.id", "value": {"stringValue": "delta"}}]},
        "scopeMetrics": [{"metrics": [{"name": name, "sum": {
            "aggregationTemporality": 1, "isMonotonic": monotonic, "dataPoints": [
                {"startTimeUnixNano": str(start), "timeUnixNano": str(end), "asDouble": value}]}}]}]}]}


def test_what_cannot_be_added_up_is_refused_with_words(server):
    now = time.time_ns()

    def send(*args, **kwargs):
        answer = requests.post(server.http + "/v1/metrics", json=delta(*args, **kwargs), timeout=30)
        assert answer.ok, answer.text
        return answer.json().get("partialSuccess", {})

    second = 10**9
    assert send(5, now - 700 * second, now - 600 * second) == {}
    assert send(5, now - 10 * second, now) == {}
    for value, start, end, words in [
        ("NaN", now, now + second, "not a finite number"),
        (-1, now, now + second, "is negative"),
        (1, now + second, now, "before the start"),
        (1, now - 900 * second, now - 800 * second, "came too late"),
    ]:
        partial = send(value, start, end)
        assert int(partial["rejectedDataPoints"]) == 1 and words in partial["errorMessage"], (words, partial)
    assert last(server, "requests")[0] == 10
    # A sum that may fall may be taken from.
    assert send(-3, now - second, now, name="load", monotonic=False) == {}
    assert last(server, "load")[0] == -3


def test_deltas_in_a_file_become_totals(tmp_path):
    now = time.time_ns()
    second = 10**9
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(delta(10, now + i * second, now + (i + 1) * second)) + "\n" for i in range(6)))
    for _ in range(2):
        run("import", path, "--data", tmp_path / "data")
        rows = sql(tmp_path / "data", "select distinct time_ns, value from series order by time_ns")
        assert [r["value"] for r in rows] == [0, 10, 20, 30, 40, 50, 60]
