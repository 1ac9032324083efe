"""A lake on bad days: the store is gone, slow, overloaded or changes its mind about us; disks are full and clocks are off.

`cluster_torture.py` kills nodes meanwhile."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time

import pytest
import requests

from conftest import wait_until
from lake import COUNT, Lake, Seaweed, numbers, post, send, total
from s3_proxy import Proxy

# How long the store is gone. `make test-cluster` takes longer.
OUTAGE_S = float(os.environ.get("OUTAGE_S", "12"))
SOON = "[store]\nflush_age_s = 1\n"


@pytest.fixture(scope="module")
def weed(tmp_path_factory):
    weed = Seaweed(tmp_path_factory.mktemp("seaweed"))
    yield weed
    weed.stop()


@pytest.fixture
def proxy(weed):
    proxy = Proxy(weed.address, seed=7)
    yield proxy
    proxy.stop()


@pytest.fixture
def lake(weed, proxy, tmp_path, request):
    """A prefix of its own. Nodes reach it through the proxy; who reads it to see what is there does not."""
    prefix = "".join(c if c.isalnum() else "-" for c in request.node.name)
    lake = Lake(prefix, tmp_path, proxy.env(weed.env), direct=weed.env)
    config = tmp_path / "soon.toml"
    config.write_text(SOON)
    lake.soon = ["--config", str(config)]
    yield lake
    proxy.rates, proxy.delay_s, proxy.spoil, proxy.out_until = {}, 0, False, 0
    lake.stop()


class Client(threading.Thread):
    """Sends numbered spans without end. What was refused or not answered is sent again, the same as before."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.sent, self.refused, self.stopping = server, 0, [], False
        self.start()

    def run(self):
        while not self.stopping:
            try:
                answer = post(self.server, "r", self.sent, 50, timeout=90)
            except requests.RequestException as error:
                self.refused.append((0, str(error), None))
                continue
            if answer.ok:
                self.sent += 50
            else:
                self.refused.append((answer.status_code, answer.text, answer.headers.get("retry-after")))
            time.sleep(0.1)

    def stop(self):
        self.stopping = True
        self.join(120)
        assert not self.is_alive(), "it gets no answer"
        return self.sent


def health(server):
    return server.get("/api/v1/health").json()


def check_refusals(client, *, some):
    """Who was refused was told to come again, and why."""
    assert bool(client.refused) or not some, "nobody was refused"
    for status, text, retry_after in client.refused:
        assert status == 503, (status, text)
        assert retry_after is not None, text


@pytest.mark.parametrize("hangs", [False, True], ids=["refused", "silent"])
def test_an_outage_of_the_store(lake, proxy, hangs):
    """Senders wait or are told to come again, somebody is told what is wrong, and all goes on when the store is back."""
    server = lake.node("a", *lake.soon)
    client = Client(server)
    wait_until(lambda: client.sent >= 200)
    before = client.sent
    proxy.outage(OUTAGE_S, hangs)
    told, states = [], set()
    while proxy.is_out:
        begun = time.monotonic()
        now = health(server)
        assert time.monotonic() - begun < 20, "whoever asks how it is waits"
        told += now["problems"]
        states.add(server.get("/readyz").status_code)
        assert server.get("/healthz").ok
        time.sleep(0.5)
    wait_until(lambda: client.sent > before + 200, 60)
    sent = client.stop()
    check_refusals(client, some=False)
    assert told, "nobody was told"
    wait_until(lambda: server.get("/readyz").ok, 60)
    wait_until(lambda: not health(server)["problems"], 60)
    assert total(server.sql(COUNT)) == numbers(sent)
    assert total(lake.sql(COUNT)) == numbers(sent)
    assert server.stop() == 0
    assert lake.delta("spans").to_pyarrow_table(columns=["span_id"]).num_rows == sent


def test_a_start_during_an_outage_says_what_is_wrong(lake, proxy):
    proxy.outage(100)
    done = lake.run("serve", "--data", lake.url, "--listen", "127.0.0.1:0", "--otlp-grpc", "", "--otlp-http", "", env=lake.env)
    assert done.returncode == 1
    assert f"cannot use the object store at {lake.url}" in done.stderr and "check the bucket" in done.stderr


def test_a_slow_store(lake, proxy):
    server = lake.node("a", *lake.soon)
    send(server, "r", 0, 50)
    proxy.delay_s = 2
    for i in range(1, 3):
        send(server, "r", i * 50, 50, timeout=60)
    assert total(server.sql(COUNT)) == numbers(150)
    assert total(lake.sql(COUNT)) == numbers(150)
    proxy.delay_s = 0
    assert server.stop() == 0
    assert lake.delta("spans").to_pyarrow_table(columns=["span_id"]).num_rows == 150


@pytest.mark.parametrize("rates", [{"unavailable": 0.5}, {"reset_after": 0.3, "reset_before": 0.1}], ids=["unavailable", "resets"])
def test_a_storm(lake, proxy, rates):
    """Many requests fail, also after they had their effect. Nothing is lost and nothing is there twice."""
    server = lake.node("a", *lake.soon)
    client = Client(server)
    wait_until(lambda: client.sent >= 100)
    proxy.rates = rates
    before = client.sent
    wait_until(lambda: client.sent > before + 1000, 120)
    time.sleep(3)
    proxy.rates = {}
    sent = client.stop()
    check_refusals(client, some=False)
    assert all(proxy.counts[fault] for fault in rates), proxy.counts
    assert total(server.sql(COUNT)) == numbers(sent)
    server.kill()
    assert total(lake.sql(COUNT)) == numbers(sent)
    server.start()
    assert server.stop() == 0
    assert lake.delta("spans").to_pyarrow_table(columns=["span_id"]).num_rows == sent


def test_credentials_that_end(lake, proxy):
    """The store refuses our signature from now on, as it does with a key that was revoked or has expired."""
    server = lake.node("a", *lake.soon)
    client = Client(server)
    wait_until(lambda: client.sent >= 100)
    proxy.spoil = True
    wait_until(lambda: client.refused, 60)
    told = wait_until(lambda: health(server)["problems"], 60)
    proxy.spoil = False
    before = client.sent
    wait_until(lambda: client.sent > before + 200, 60)
    sent = client.stop()
    check_refusals(client, some=True)
    said = " ".join(text for _, text, _ in client.refused)
    assert "403" in said or "privileges" in said, said[:1000]
    assert "403" in str(told) or "privileges" in str(told), told
    wait_until(lambda: not health(server)["problems"], 60)
    assert total(server.sql(COUNT)) == numbers(sent)
    assert server.stop() == 0
    assert total(lake.sql(COUNT)) == numbers(sent)


def test_a_prefix_of_a_newer_format(lake, weed):
    assert lake.node("a").stop() == 0
    about = json.loads(weed.get(f"{lake.prefix}/store.json"))
    weed.put(f"{lake.prefix}/store.json", json.dumps({**about, "format": about["format"] + 1}))
    for command in (["serve", "--listen", "127.0.0.1:0", "--otlp-grpc", "", "--otlp-http", ""], ["executor"], ["sql", "select 1"]):
        done = lake.run(command[0], "--data", lake.url, *command[1:])
        assert done.returncode == 1, command
        assert lake.url in done.stderr and "newer rollscope" in done.stderr and "upgrade" in done.stderr, done.stderr


def test_a_store_without_exclusive_creates(lake, proxy):
    proxy.forget_conditions = True
    done = lake.run("serve", "--data", lake.url, "--listen", "127.0.0.1:0", "--otlp-grpc", "", "--otlp-http", "", env=lake.env)
    assert done.returncode == 1, done.stderr
    assert lake.url in done.stderr and "does not keep writers apart" in done.stderr and "SeaweedFS" in done.stderr, done.stderr
    assert proxy.counts["conditions forgotten"]


def test_a_full_disk_under_the_cache(lake, tmp_path):
    """It holds what can be made again, so nothing but the search may suffer."""
    cache = tmp_path / "disk"
    cache.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", cache], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk needs the right to mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        server = lake.node("a", *lake.soon, cache=cache / "cache")
        send(server, "r", 0, 100)
        with open(cache / "ballast", "wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(b"x" * 4096)
        for i in range(1, 6):
            send(server, "r", i * 100, 100)
            time.sleep(0.3)
        assert total(server.sql(COUNT)) == numbers(600)
        assert server.get("/readyz").ok
        server.kill()
        # Also a start finds no room.
        server.start()
        send(server, "r", 600, 100)
        assert total(server.sql(COUNT)) == numbers(700)
        (cache / "ballast").unlink()
        assert server.stop() == 0
        assert total(lake.sql(COUNT)) == numbers(700)
    finally:
        for server in lake.started:
            server.stop()
        subprocess.run(["umount", "-l", cache], check=True)


def fake_clock(offset):
    """The environment of a process whose clock is off."""
    library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
    if shutil.which("faketime") is None or not os.path.exists(library):
        pytest.skip("a clock that is off needs faketime")
    return {"LD_PRELOAD": library, "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1"}


def test_clocks_that_differ(lake):
    """Nodes whose clocks are ten minutes off, one to each side, beside one that is right."""
    right = lake.node("right", *lake.soon)
    late = lake.node("late", *lake.soon, env=fake_clock("-600s"))
    early = lake.node("early", *lake.soon, env=fake_clock("+600s"))
    nodes = [right, late, early]
    for i in range(12):
        send(nodes[i % 3], "r", i * 100, 100)
        time.sleep(0.2)
    assert total(lake.sql(COUNT)) == numbers(1200)
    early.kill()
    early.start()
    send(early, "r", 1200, 100)
    assert all(node.stop() == 0 for node in nodes)
    assert total(lake.sql(COUNT)) == numbers(1300)
    # Nobody takes another one for dead because of its clock.
    assert "taken over" not in "".join((lake.folder / f"{name}.log").read_text() for name in ("right", "late"))


def test_a_clock_that_the_store_does_not_accept(lake):
    done = lake.run("serve", "--data", lake.url, "--listen", "127.0.0.1:0", "--otlp-grpc", "", "--otlp-http", "",
                    env={**lake.env, **fake_clock("+3600s")})
    assert done.returncode == 1, done.stderr
    assert f"cannot use the object store at {lake.url}" in done.stderr and "RequestTimeTooSkewed" in done.stderr, done.stderr


def test_a_worker_that_hangs_costs_time_only(lake, tmp_path):
    config = tmp_path / "spread.toml"
    config.write_text("[query]\nspread_bytes = 1\n" + SOON)
    server = lake.node("a", "--role", "ingest", "--config", str(config))
    for i in range(2):
        send(server, "r", i * 500, 500)
        time.sleep(2)
    hanging, other = lake.worker("--node", "one"), lake.worker("--node", "two")
    asked = lake.node("ask", "--role", "query", "--config", str(config))
    query = "select name, count(*), count(distinct span_id) from spans where name like 'work%' group by name order by name"
    wait_until(lambda: "DistributedExec" in str(asked.sql("explain " + query)), 60)
    expected = asked.sql(query)
    assert sum(row[1] for row in expected) == 1000
    hanging.send_signal(signal.SIGSTOP)
    for _ in range(2):
        assert asked.sql(query) == expected
    hanging.send_signal(signal.SIGCONT)
    other.kill()
    assert asked.sql(query) == expected
