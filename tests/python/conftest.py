"""The package, as its users have it: installed, against the real server. What ends or breaks a process runs in one of its own."""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# The harness of the other tests: a file of the same name, one folder up.
_spec = importlib.util.spec_from_file_location("rollscope_tests", Path(__file__).resolve().parents[1] / "conftest.py")
_harness = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_harness)
BINARY, ROOT, wait_until = _harness.BINARY, _harness.ROOT, _harness.wait_until
serve, server = _harness.serve, _harness.server


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    """No test sees the machine's settings, and none leaves anything outside its folder."""
    for name in list(os.environ):
        if name.startswith(("ROLLSCOPE_", "OTEL_", "SGLANG_", "ROLL_")) and name != "ROLLSCOPE_BIN":
            monkeypatch.delenv(name)
    monkeypatch.setenv("ROLLSCOPE_SPILL_DIR", str(tmp_path / "spill"))


@pytest.fixture
def seen():
    from rollscope.testing import capture

    with capture() as captured:
        yield captured


@pytest.fixture
def run(seen, monkeypatch):
    """A run whose records stay in memory."""
    import rollscope
    from rollscope import _run

    monkeypatch.setattr(_run, "_start", lambda *a, **k: None)
    monkeypatch.setenv("ROLLSCOPE_RUN_ID", "")
    run = rollscope.init(project="math", name="grpo 7b", config={"lr": 1e-6, "bad": float("nan")}, tags=["a"])
    yield run
    run.finish()
    os.environ.pop("ROLLSCOPE_RUN_ID", None)


def records(seen, kind):
    return [r for r in seen.records if r.name == f"rollscope.{kind}"]


class Program:
    """A Python program of a test."""

    def __init__(self, tmp_path):
        self.tmp_path = tmp_path

    def start(self, code, endpoint=None, **env):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLSCOPE_", "OTEL_"))}
        environment["ROLLSCOPE_SPILL_DIR"] = str(self.tmp_path / "spill")
        if endpoint is not None:
            environment["ROLLSCOPE_ENDPOINT"] = endpoint
        environment.update({k: str(v) for k, v in env.items()})
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment, cwd=self.tmp_path)

    def run(self, code, endpoint=None, **env):
        """Runs it to its end, which must be good; the last line it prints, as JSON."""
        process = self.start(code, endpoint, **env)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err[-4000:]
        self.stderr = err
        lines = out.strip().splitlines()
        return json.loads(lines[-1]) if lines else None


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path)


class ServerAt(_harness.Server):
    """A server whose gRPC port is given, so that another one can take its place."""

    def __init__(self, data, port):
        self.port = port
        super().__init__(data)

    def start(self):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ROLLSCOPE_")}
        self.log = open(self.data.parent / f"{self.data.name}.log", "ab")
        self.process = subprocess.Popen(
            [BINARY, "serve", "--data", self.data, "--listen", "127.0.0.1:0", "--otlp-grpc", f"127.0.0.1:{self.port}",
             "--otlp-http", ""], stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment)
        for line in self.process.stdout:
            if line.startswith("rollscope is at"):
                self.url = line.split()[-1]
            elif line.startswith("data"):
                return
        raise RuntimeError("rollscope did not start: " + Path(self.log.name).read_text()[-2000:])


@pytest.fixture
def serve_at(tmp_path):
    """Starts servers over one folder on one port, one after the other."""
    started = []

    def start(port):
        started.append(ServerAt(tmp_path / "data", port))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop()
