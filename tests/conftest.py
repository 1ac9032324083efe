"""The real binary, as a user starts it. Tests talk to it over its ports and its command line only."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import requests

ROOT = Path(__file__).resolve().parent.parent
BINARY = Path(os.environ.get("ROLLSCOPE_BIN", ROOT / "target" / "debug" / "rollscope"))
FIXTURES = ROOT / "fixtures"


# The bound that docs/operation.md states for a server with default limits, and the most that any server took.
MEMORY_MIB = 2048
peak = (0, "")


class Server:
    """`rollscope serve` on free ports."""

    def __init__(self, data: Path, *flags: str, command: str = "serve", env: dict | None = None,
                 place: str | None = None):
        # `place` is a lake; then `data` is only where its log and cache are.
        self.data, self.place = data, place
        self.flags = flags
        self.command = command
        self.env = env or {}
        self.process = None
        self.start()

    def start(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("ROLLSCOPE_")}
        self.log = open(self.data.parent / f"{self.data.name}.log", "ab")
        self.process = subprocess.Popen(
            [BINARY, self.command, "--data", self.place or self.data, *([] if "--listen" in self.flags else ["--listen", "127.0.0.1:0"]),
             "--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", *self.flags],
            stdout=subprocess.PIPE, stderr=self.log, text=True, env={**env, **self.env})
        told = {}
        for line in self.process.stdout:
            words = line.split()
            if line.startswith("rollscope is at"):
                told["url"] = words[-1]
            elif line.startswith("OTLP"):
                told[words[1].lower()] = words[-1]
            elif line.startswith("data"):
                break
        else:
            raise RuntimeError("rollscope did not start: " + Path(self.log.name).read_text()[-2000:])
        self.url, self.grpc, self.http = told["url"], told.get("grpc"), told.get("http")

    @property
    def grpc_target(self):
        return self.grpc.split("//")[1]

    def get(self, path, **kwargs):
        return requests.get(self.url + path, timeout=30, **kwargs)

    def post(self, path, **kwargs):
        return requests.post(self.url + path, timeout=30, **kwargs)

    def put(self, path, **kwargs):
        return requests.put(self.url + path, timeout=30, **kwargs)

    def delete(self, path, **kwargs):
        return requests.delete(self.url + path, timeout=30, **kwargs)

    def otlp_json(self, message):
        return requests.post(self.http + "/v1/traces", json=message, timeout=30)

    def sql(self, query):
        answer = requests.post(self.url + "/api/v1/sql", json={"query": query, "format": "json"}, timeout=60)
        assert answer.ok, answer.text
        return answer.json()["rows"]

    def one(self, query):
        return self.sql(query)[0][0]

    def memory(self):
        """The most memory that it took so far, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0)

    def check_memory(self):
        global peak
        took = self.memory()
        peak = max(peak, (took, os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]))
        assert took < MEMORY_MIB, f"the server took {took:.0f} MiB"

    def kill(self):
        self.check_memory()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        if self.process.poll() is None:
            self.check_memory()
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=60)
        self.process.stdout.close()
        self.log.close()
        return self.process.returncode


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line("the most memory that a server took: %.0f MiB (%s)" % peak)


@pytest.fixture
def serve(tmp_path):
    """Starts servers and stops them at the end."""
    started = []

    def start(data=None, *flags, **kwargs):
        server = Server(data or tmp_path / "data", *flags, **kwargs)
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def server(serve):
    return serve()


def spans_in(otlp):
    """How many spans OTLP JSON lines hold; links name spans, too."""
    requests = [json.loads(line) for line in otlp.splitlines()]
    return sum(len(scope["spans"]) for request in requests for part in request["resourceSpans"] for scope in part["scopeSpans"])


def run(*args, check=True, **kwargs):
    """A command of the binary, to its end."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("ROLLSCOPE_")}
    done = subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=120, env=env, **kwargs)
    if check:
        assert done.returncode == 0, done.stderr
    return done


def sql(data, query):
    return json.loads(run("sql", "--data", data, "--format", "json", query).stdout)


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")
