"""A lake for tests: an S3 server (SeaweedFS), a prefix in it, and nodes of rollscope as processes."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import deltalake
import requests

from conftest import BINARY, FIXTURES, Server, wait_until

KEYS = {"AWS_ACCESS_KEY_ID": "lake", "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-lake", "AWS_REGION": "us-east-1"}
BUCKET = "lake"


def free_ports(n):
    """Also those that a port for gRPC is derived from, 10,000 above."""
    sockets, ports = [], []
    while len(ports) < n:
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        sockets.append(one)
        if (port := one.getsockname()[1]) < 55_000:
            ports.append(port)
    for one in sockets:
        one.close()
    return ports


def without_ours(env=os.environ):
    """An environment without what this machine says of rollscope and of S3."""
    return {k: v for k, v in env.items() if not k.startswith(("ROLLSCOPE_", "AWS_"))}


class Seaweed:
    """An S3 server with one bucket, until it is stopped. `env` is what a client of it needs."""

    def __init__(self, folder):
        weed = Path(sys.executable).parent / "weed"
        s3, master, self.filer, volume = free_ports(4)
        log = folder / "log"
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                [weed, "mini", f"-dir={folder}", "-ip=127.0.0.1", f"-s3.port={s3}", f"-master.port={master}",
                 f"-filer.port={self.filer}", f"-volume.port={volume}", "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0",
                 "-s3.port.lance=0", f"-bucket={BUCKET}"], stdout=out, stderr=out, env={**os.environ, **KEYS}, cwd=folder)

        def is_up():
            assert self.process.poll() is None, log.read_text()[-3000:]
            return "running and ready" in log.read_text()

        wait_until(is_up, 90)
        self.address = "127.0.0.1", s3
        self.env = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}"}
        wait_until(self.is_settled, 90)

    def is_settled(self):
        """In its first seconds on a busy machine, it may let two writers create one object. rollscope refuses it then."""
        command = [BINARY, "import", "--data", f"s3://{BUCKET}/settling", "--run", "r", str(FIXTURES / "slime" / "small.pt")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, env={**without_ours(), **self.env})
        return done.returncode == 0

    def stop(self):
        # In order, it takes ten seconds.
        self.process.kill()
        self.process.wait()

    # Beside S3, as somebody who needs no keys.
    def _of(self, path):
        return f"http://127.0.0.1:{self.filer}/buckets/{BUCKET}/{path}"

    def get(self, path):
        """An object. `None` if there is none."""
        answer = requests.get(self._of(path), timeout=30)
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return answer.content

    def put(self, path, data):
        requests.post(self._of(path), files={"file": data}, timeout=30).raise_for_status()

    def find(self, folder):
        """Paths of all objects below a folder."""
        for name, size in self.names(folder).items():
            path = f"{folder}/{name}"
            yield from [path] if size else self.find(path)

    def names(self, folder):
        """What is in a folder: names, with sizes."""
        last, found = "", {}
        while True:
            parameters = {"limit": 1000, "lastFileName": last}
            answer = requests.get(self._of(folder) + "/", params=parameters, headers={"accept": "application/json"}, timeout=30)
            if answer.status_code == 404:
                return found
            answer.raise_for_status()
            entries = answer.json().get("Entries") or []
            found.update((entry["FullPath"].rsplit("/", 1)[1], entry.get("FileSize", 0)) for entry in entries)
            if len(entries) < 1000:
                return found
            last = entries[-1]["FullPath"].rsplit("/", 1)[1]


class Lake:
    """A prefix, and how to start nodes there. `env` is what they reach it with, `direct` the same without a proxy."""

    def __init__(self, prefix, folder, env, direct=None):
        self.prefix = prefix
        self.url = f"s3://{BUCKET}/{prefix}"
        self.folder, self.env, self.direct = folder, env, direct or env
        self.started, self.workers = [], []

    def node(self, name, *flags, env=None, cache=None):
        cache = cache or self.folder / name
        server = Server(self.folder / name, "--node", name, "--cache", str(cache), *flags, env={**self.env, **(env or {})}, place=self.url)
        self.started.append(server)
        return server

    def worker(self, *flags):
        """Works for the queries of others. It has no page."""
        with open(self.folder / "worker.log", "ab") as log:
            process = subprocess.Popen([BINARY, "executor", "--data", self.url, *flags], stdout=subprocess.PIPE, stderr=log, text=True,
                                       env={**without_ours(), **self.env})
        self.workers.append(process)
        said = process.stdout.readline()
        assert said.startswith("worker "), (self.folder / "worker.log").read_text()[-3000:]
        return process

    def run(self, *args, env=None, timeout=120):
        env = {**without_ours(), "HOME": str(self.folder), **(self.direct if env is None else env)}
        return subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=timeout, env=env)

    def sql(self, query):
        done = self.run("sql", "--data", self.url, "--format", "json", query)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def options(self):
        """For programs that read Delta tables."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.direct["AWS_ENDPOINT_URL"], "AWS_ALLOW_HTTP": "true"}

    def delta(self, table):
        return deltalake.DeltaTable(f"{self.url}/{table}", storage_options=self.options)

    def stop(self):
        for worker in self.workers:
            worker.kill()
            worker.wait()
            worker.stdout.close()
        # At once: each may have something to flush.
        stopping = [threading.Thread(target=server.stop) for server in self.started]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()


def send(server, run, first, n, **kwargs):
    """Closed spans with attributes, as any OTLP client sends them."""
    answer = post(server, run, first, n, **kwargs)
    assert answer.ok, answer.text


def post(server, run, first, n, timeout=30):
    t0 = 1_790_000_000_000_000_000
    spans = [{
        "traceId": f"{i // 10 + 1:032x}", "spanId": f"{i + 1:016x}", "name": f"work {i % 3}", "kind": 1,
        "startTimeUnixNano": str(t0 + i * 1000), "endTimeUnixNano": str(t0 + i * 1000 + 500),
        "attributes": [{"key": "number", "value": {"intValue": str(i)}}],
    } for i in range(first, first + n)]
    resource = {"attributes": [{"key": "rollscope.run", "value": {"stringValue": run}}, {"key": "service.name", "value": {"stringValue": "s"}}]}
    message = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}
    return requests.post(server.http + "/v1/traces", json=message, timeout=timeout)


COUNT = "select count(*) as n, count(distinct span_id) as d, sum(attr(attrs, 'number')::bigint) as s from spans where name like 'work%'"


def total(rows):
    """What [`COUNT`] says."""
    (row,) = rows
    return tuple(int(value or 0) for value in (row.values() if isinstance(row, dict) else row))


def numbers(n):
    """What [`COUNT`] says of the first n spans, each there once."""
    return n, n, sum(range(n))
