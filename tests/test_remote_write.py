"""A real Prometheus scrapes a page and writes what it scraped to rollscope, in both versions of the protocol. Then both give the
same answers. What a sender may get wrong is sent by hand."""

import json
import shutil
import struct
import subprocess
import time

import pytest
import requests

from conftest import ROOT, wait_until
from exporter import Exporter
from test_prometheus import QUERIES, Prometheus, apart, ask, installed, rows, same

PATH = "/prometheus/api/v1/write"
V1 = "prometheus.WriteRequest"
V2 = "io.prometheus.write.v2.Request"


def version(binary):
    words = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout.split()
    return tuple(int(n) for n in words[words.index("version") + 1].split("+")[0].split(".")[:2]) if words else (0, 0)


def newer_prometheus():
    """One that writes 2.0, which Debian has in a later release: fetched from the mirror that apt uses, and unpacked."""
    folder = ROOT / "target" / "newer-prometheus"
    found = [b for b in (str(folder / "usr/bin/prometheus"), "prometheus") if shutil.which(b) and version(b) >= (2, 54)]
    if found:
        return found[0]
    folder.mkdir(parents=True, exist_ok=True)
    lists = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
                           capture_output=True, text=True).stdout.split()
    mirror = next((uri for uri in lists if uri.rstrip("/").endswith("/debian")), None)
    if mirror:
        (folder / "sources").write_text(f"deb {mirror} forky main\n")
        (folder / "lists").mkdir(exist_ok=True)
        options = [f"-oDir::Etc::sourcelist={folder}/sources", "-oDir::Etc::sourceparts=-", f"-oDir::State::lists={folder}/lists",
                   f"-oDir::Cache::pkgcache={folder}/pkg.bin", f"-oDir::Cache::srcpkgcache={folder}/src.bin", "-oAPT::Sandbox::User=root"]
        subprocess.run(["apt-get", *options, "update"], capture_output=True)
        subprocess.run(["apt-get", *options, "download", "prometheus"], capture_output=True, cwd=folder)
        for package in folder.glob("prometheus_*.deb"):
            subprocess.run(["dpkg", "-x", package, folder], check=True)
    if not (folder / "usr/bin/prometheus").exists():
        pytest.skip("apt-get cannot fetch Debian's newer prometheus, which writes 2.0")
    return str(folder / "usr/bin/prometheus")


def writing(folder, exporter, url, message, **more):
    """A Prometheus that writes to rollscope."""
    target = {"url": url + PATH, "queue_config": {"batch_send_deadline": "100ms"}, **more}
    if message == V1:
        installed()
        target["metadata_config"] = {"send_interval": "1s"}
        return Prometheus(folder, exporter, remote_write=[target])
    # Without the flag, 2.0 says nothing about kinds.
    return Prometheus(folder, exporter, binary=newer_prometheus(), flags=["--enable-feature=metadata-wal-records"],
                      remote_write=[{**target, "protobuf_message": message}])


@pytest.mark.parametrize("message", [V1, V2])
def test_the_same_answers_as_the_prometheus_that_wrote(tmp_path, serve, message):
    exporter = Exporter(times=True)
    server = serve()
    ours = server.url + "/prometheus"
    prometheus = writing(tmp_path / "prometheus", exporter, server.url, message)
    try:
        def seen(base):
            found = ask(base, "query", query="max(timestamp(sglang:kv_transfer_speed_gb_s_count))")["result"]
            return found and round(float(found[0]["value"][1]) * 1000) == exporter.times[-1]

        # It does not send samples from before its start.
        wait_until(lambda: seen(prometheus.url), 60)
        exporter.advance()
        for tick in range(32):
            wait_until(lambda: seen(prometheus.url) and seen(ours), 60)
            exporter.advance({10: 0, 24: 2}.get(tick))
        wait_until(lambda: seen(prometheus.url) and seen(ours), 60)
        ticks = exporter.times
        # No window reaches back to the first state, which only Prometheus has.
        start, step, end = ticks[0] + 21_333, 617, ticks[-1]
        while not apart(range(start, end, step), set(ticks)):
            start += 1
        span = {"start": start / 1000, "end": (end - 1) / 1000, "step": step / 1000}
        for query in QUERIES:
            theirs = rows(ask(prometheus.url, "query_range", query=query, **span))
            same(rows(ask(ours, "query_range", query=query, **span)), theirs, query)
        at = ticks[-3] + 11
        while not apart([at], set(ticks)):
            at += 1
        for query in ["sglang:num_queue_reqs[5s]", "sglang:e2e_request_latency_seconds_bucket[9s]"]:
            same(rows(ask(ours, "query", query=query, time=at / 1000)), rows(ask(prometheus.url, "query", query=query, time=at / 1000)), query)
        # What Prometheus adds to a scrape comes with it, at its own times.
        for query in ["up", "scrape_samples_scraped"]:
            theirs = rows(ask(prometheus.url, "query_range", query=query, **span))
            assert theirs
            same(rows(ask(ours, "query_range", query=query, **span)), theirs, query)

        match = {"match[]": '{__name__=~"sglang.*"}'}
        by = lambda series: sorted(json.dumps(s, sort_keys=True) for s in series)
        assert by(ask(ours, "series", **match)) == by(ask(prometheus.url, "series", **match))
        kinds = lambda base: {name: e[0]["type"] for name, e in requests.get(base + "/api/v1/metadata", timeout=60).json()["data"].items()
                              if name.startswith("sglang")}
        wait_until(lambda: kinds(ours) == kinds(prometheus.url) and kinds(ours))
        # The rows are those of scraping: no run in particular, the instance is the target, all labels but the name.
        run, target, labels = server.sql("select distinct run_id, target, labels from series where name = 'sglang:num_queue_reqs' "
                                         "and attr(labels, 'tp_rank') = '1' and attr(labels, 'engine_type') = 'decode'")[0]
        assert (run, target) == ("_scraped", f"127.0.0.1:{exporter.port}")
        assert json.loads(labels) == {"engine_type": "decode", "instance": target, "job": "sglang", "model_name": "qwen", "tp_rank": "1"}
        # Prometheus itself counts nothing as failed.
        own = requests.get(prometheus.url + "/metrics", timeout=30).text
        failed = [line for line in own.splitlines() if line.startswith("prometheus_remote_storage_samples_failed_total")]
        assert failed and all(line.endswith(" 0") for line in failed), failed
    finally:
        prometheus.stop()
        exporter.close()


@pytest.mark.parametrize("message", [V1, V2])
def test_a_server_that_was_away_gets_what_it_missed_and_series_end(tmp_path, serve, message):
    exporter = Exporter()
    server = serve(None, "--listen", "127.0.0.1:0")
    address = server.url.split("//")[1]
    prometheus = writing(tmp_path / "prometheus", exporter, server.url, message)
    try:
        count = lambda base, query: len(ask(base, "query", query=query)["result"])
        bases = [prometheus.url, server.url + "/prometheus"]
        wait_until(lambda: all(count(base, "sglang:num_queue_reqs") == 6 for base in bases))
        server.kill()
        exporter.advance()
        scraped = lambda: float(ask(prometheus.url, "query", query="count_over_time(up[1m])")["result"][0]["value"][1])
        before = scraped()
        wait_until(lambda: scraped() >= before + 3)
        exporter.leave_out = ("num_queue_reqs",)
        server.flags = ("--listen", address)
        server.start()
        # Stale at once, not after five minutes.
        wait_until(lambda: all(count(base, "sglang:num_queue_reqs") == 0 for base in bases), 60)
        assert count(bases[1], "sglang:num_running_reqs") == 6
        ended = time.time() - 2
        wait_until(lambda: float(ask(bases[1], "query", query="max(timestamp(up))")["result"][0]["value"][1]) > ended + 1)
        for query in ["count_over_time(up[1m])", "sglang:num_running_reqs[1m]"]:
            theirs = rows(ask(prometheus.url, "query", query=query, time=ended))
            same(rows(ask(bases[1], "query", query=query, time=ended)), theirs, query)
    finally:
        prometheus.stop()
        exporter.close()


# By hand.

def varint(n):
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 0x7f:
        out.append(n & 0x7f | 0x80)
        n >>= 7
    return bytes(out) + bytes([n])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def sample(value, ms):
    return field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + varint(ms))


def series(labels, *samples):
    pairs = b"".join(field(1, field(1, name.encode()) + field(2, value.encode())) for name, value in labels.items())
    return field(1, pairs + b"".join(samples))


def series_2(refs, *samples):
    return field(5, field(1, b"".join(map(varint, refs))) + b"".join(samples))


def snappy(data):
    """The block format, with literals only."""
    out = [varint(len(data))]
    for i in range(0, len(data), 65536):
        part = data[i:i + 65536]
        out.append(bytes([61 << 2]) + struct.pack("<H", len(part) - 1) + part)
    return b"".join(out)


def send(server, body, message=V1, **headers):
    kind = "application/x-protobuf" + (f";proto={message}" if message else "")
    headers = {"content-type": kind, "content-encoding": "snappy", "x-prometheus-remote-write-version": "2.0.0", **headers}
    return server.post(PATH, data=body, headers={k: v for k, v in headers.items() if v})


def written(answer):
    return [answer.headers.get(f"x-prometheus-remote-write-{what}-written") for what in ("samples", "histograms", "exemplars")]


def test_what_a_sender_is_told(server):
    now = int(time.time() * 1000)
    good = series({"__name__": "good", "job": "j", "instance": "i"}, sample(1.5, now))
    for message in (V1, ""):
        answer = send(server, snappy(good), message)
        assert (answer.status_code, written(answer), answer.content) == (204, ["1", "0", "0"], b"")
    symbols = b"".join(field(4, text) for text in (b"", b"__name__", b"good", b"instance", b"i", b"job", b"j"))
    answer = send(server, snappy(symbols + series_2([1, 2, 3, 4, 5, 6], sample(1.5, now), sample(2.5, now - 9000))), V2)
    assert (answer.status_code, written(answer)) == (204, ["2", "0", "0"])
    # The same sample four times, and one that is older than what was there.
    assert server.sql("select time_ns, value from series where name not like 'ALERTS%' order by time_ns") == [[(now - 9000) * 1000000, 2.5], [now * 1000000, 1.5]]
    text = server.get("/metrics").text
    for line in ('requests_total{protocol="remote-write"} 3', 'accepted_total{protocol="remote-write"} 2', 'duplicates_total{protocol="remote-write"} 2'):
        assert f"rollscope_ingest_{line}\n" in text, line

    # A part is bad: it is named, and the rest is stored.
    nameless = series({"job": "j"}, sample(1, now))
    native = field(1, field(1, field(1, b"__name__") + field(2, b"native")) + field(4, b"\x78" + varint(now)))
    answer = send(server, snappy(nameless + series({"__name__": "rest"}, sample(3, now)) + native))
    assert (answer.status_code, written(answer)) == (400, ["1", "0", "0"])
    assert answer.headers["content-type"] == "application/problem+json"
    assert "2 samples were not stored, 1 were" in answer.json()["detail"] and "send_native_histograms" in answer.json()["detail"]
    assert server.one("select count(*) from series where name = 'rest'") == 1

    # A run, as a scrape target may have one.
    answer = server.post(PATH + "?run=r1", data=snappy(series({"__name__": "mine"}, sample(1, now))), headers={"content-type": "application/x-protobuf"})
    assert answer.status_code == 204
    assert server.sql("select run_id from series where name = 'mine'") == [["r1"]]
    assert ask(server.url + "/prometheus", "query", query="mine")["result"][0]["metric"] == {"__name__": "mine", "run": "r1"}


def test_bad_requests(server):
    now = int(time.time() * 1000)
    good = snappy(series({"__name__": "good"}, sample(1, now)))
    cases = [
        (good, V1, {"content-type": "application/json"}, 415, "content type"),
        (good, "io.prometheus.write.v3.Request", {}, 415, "io.prometheus.write.v2.Request"),
        (good, V1, {"content-encoding": "gzip"}, 415, "snappy"),
        (good[:-3], V1, {}, 400, "snappy"),
        (b"\xff\xff\xff\xff\xff", V1, {}, 400, "snappy"),
        (b"\x80\x80\x80\x80\x04\x00a", V1, {}, 413, "max_message_bytes"),
        (b"\x80\x80\x80\x01\x00a", V1, {}, 400, "length"),
        (snappy(b"\x0a\x05abc"), V1, {}, 400, "malformed request"),
        (snappy(b"hello"), V2, {}, 400, "malformed request"),
        (snappy(field(4, b"") + series_2([7, 8], sample(1, now))), V2, {}, 400, "symbol"),
        (snappy(series({f"l{i}": "v" for i in range(5000)} | {"__name__": "x"}, sample(1, now))), V1, {}, 400, "more than 64 labels"),
        (snappy(series({"__name__": "x"}, sample(1, now + 3_600_000))), V1, {}, 400, "ahead"),
        (snappy(b"".join(series({"__name__": "x"}, *[sample(1, now - n) for n in range(m, m + 1000)]) for m in range(0, 201_000, 1000))), V1, {}, 413, "max_samples"),
    ]
    for body, message, headers, status, words in cases:
        answer = send(server, body, message, **headers)
        assert (answer.status_code, words in answer.json()["detail"]) == (status, True), (words, answer.status_code, answer.text)
        assert written(answer) == ["0", "0", "0"], words
    assert server.get(PATH).status_code == 405
    answer = server.post(PATH + "?rnu=1", data=good)
    assert answer.status_code == 400 and "rnu" in answer.json()["detail"]
    assert server.one("select count(*) from series where name not like 'ALERTS%'") == 0


def test_it_needs_the_scope_ingest(serve, tmp_path):
    (tmp_path / "tokens").write_text("ingest aaaaaaaaaaaaaaaa prometheus\nread bbbbbbbbbbbbbbbb grafana\n")
    server = serve(None, "--token-file", tmp_path / "tokens")
    body = snappy(series({"__name__": "x"}, sample(1, int(time.time() * 1000))))
    assert send(server, body).status_code == 401
    assert send(server, body, authorization="Bearer bbbbbbbbbbbbbbbb").status_code == 403
    assert send(server, body, authorization="Bearer aaaaaaaaaaaaaaaa").status_code == 204
    # Queries beside it still need `read`.
    query = lambda token: server.get("/prometheus/api/v1/query?query=x", headers={"authorization": "Bearer " + token}).status_code
    assert (query("aaaaaaaaaaaaaaaa"), query("bbbbbbbbbbbbbbbb")) == (403, 200)
    # A page of another site may not write, even where no token is needed.
    assert send(serve(tmp_path / "open"), body, origin="https://evil.example").status_code == 403
