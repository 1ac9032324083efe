"""Starts a server for this process: `init(embedded=True)`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading

from ._errors import swallowed


def find_binary() -> str | None:
    """Finds the `rollscope` program: ROLLSCOPE_BIN, else beside this Python, else on the PATH."""
    named = os.environ.get("ROLLSCOPE_BIN")
    if named:
        return named
    beside = os.path.join(os.path.dirname(sys.executable), "rollscope")
    if os.access(beside, os.X_OK):
        return beside
    return shutil.which("rollscope")


#: Sets the signal that the kernel sends when the parent is gone, and becomes the program.
_LAUNCHER = """
import os, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 15, 0, 0, 0)
except Exception:
    pass
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

#: Longest time that a server may take to start, in seconds.
_START_SECONDS = 60.0


def tied(command: list[str]) -> list[str]:
    """The same command, as a process that gets SIGTERM when the thread that starts it is gone, even by `kill -9`."""
    python = sys.executable or ""
    if getattr(sys, "frozen", False) or not os.path.basename(python).startswith("python"):
        return command
    return [python, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]


class Embedded:
    """Runs `rollscope serve` on free ports until this process ends, by whatever means."""

    def __init__(self, data: str):
        binary = find_binary()
        if binary is None:
            raise FileNotFoundError("cannot find the rollscope program; install the wheel, or set ROLLSCOPE_BIN to its path")
        os.makedirs(data, exist_ok=True)
        self.url: str | None = None
        self.endpoint: str | None = None
        self.pid = os.getpid()
        self.process: subprocess.Popen[str] | None = None
        self._settled = threading.Event()
        command = [binary, "serve", "--data", data, "--listen", "127.0.0.1:0", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", ""]
        log = os.path.join(data, "server.log")
        # The server lives as long as the thread that started it. This one ends with the process.
        threading.Thread(target=self._serve, args=(command, log), name="rollscope server", daemon=True).start()
        in_time = self._settled.wait(_START_SECONDS)
        if self.endpoint is None:
            self.stop()
            late = "" if in_time else f" within {_START_SECONDS:g} seconds"
            raise RuntimeError(f"`rollscope serve` did not start{late}; see {log}")

    def _serve(self, command: list[str], log_path: str) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ROLLSCOPE_")}
        endpoint = None
        try:
            with open(log_path, "ab") as log:
                self.process = subprocess.Popen(
                    tied(command),
                    stdout=subprocess.PIPE,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    text=True,
                    env=environment,
                    start_new_session=True,
                )
            # Read to its end: a server that nobody listens to would wait.
            for line in self.process.stdout or ():
                if line.startswith("rollscope is at"):
                    self.url = line.split()[-1]
                elif line.startswith("OTLP") and "grpc" in line.lower():
                    endpoint = line.split()[-1]
                elif line.startswith("data"):
                    self.endpoint = endpoint
                    self._settled.set()
        except Exception as error:
            swallowed(error)
        finally:
            self._settled.set()

    def stop(self) -> None:
        process = self.process
        if process is None or os.getpid() != self.pid or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
