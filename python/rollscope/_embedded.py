"""Starts a server for this process: `init(embedded=True)`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys


def find_binary() -> str | None:
    """Finds the `rollscope` program: ROLLSCOPE_BIN, else beside this Python, else on the PATH."""
    named = os.environ.get("ROLLSCOPE_BIN")
    if named:
        return named
    beside = os.path.join(os.path.dirname(sys.executable), "rollscope")
    if os.access(beside, os.X_OK):
        return beside
    return shutil.which("rollscope")


class Embedded:
    """Runs `rollscope serve` on free ports until this process ends."""

    def __init__(self, data: str):
        binary = find_binary()
        if binary is None:
            raise FileNotFoundError("cannot find the rollscope program; install the wheel, or set ROLLSCOPE_BIN to its path")
        os.makedirs(data, exist_ok=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ROLLSCOPE_")}
        self.log = open(os.path.join(data, "server.log"), "ab")
        self.process = subprocess.Popen(
            [binary, "serve", "--data", data, "--listen", "127.0.0.1:0", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", ""],
            stdout=subprocess.PIPE,
            stderr=self.log,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.url: str | None = None
        self.endpoint: str | None = None
        self.pid = os.getpid()
        for line in self.process.stdout or ():
            if line.startswith("rollscope is at"):
                self.url = line.split()[-1]
            elif line.startswith("OTLP") and "grpc" in line.lower():
                self.endpoint = line.split()[-1]
            elif line.startswith("data"):
                break
        if self.endpoint is None:
            self.stop()
            raise RuntimeError(f"`rollscope serve` did not start; see {os.path.join(data, 'server.log')}")

    def stop(self) -> None:
        if os.getpid() != getattr(self, "pid", os.getpid()) or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()
