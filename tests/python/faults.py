"""Servers that misbehave as told, and what they took."""

import concurrent.futures
import http.server
import socket
import struct
import threading
import time

import grpc
from rollscope.testing import _fields, _record, _span

POISON = b"poison"


def items(path, body):
    """The spans or records of a request."""
    for _, resource in _fields(body):
        for number, scope in _fields(resource):
            if number == 2:
                for inner, item in _fields(scope):
                    if inner == 2:
                        yield _span(item, {}) if path.endswith("traces") else _record(item)


class Taken:
    """The requests that a server took, as paths of OTLP over HTTP and bodies."""

    def __init__(self):
        self.taken = []

    def spans(self, name="s"):
        """The ended spans of that name that were taken."""
        return [item for path, body in list(self.taken) if path.endswith("traces") for item in items(path, body)
                if item.name == name and item.end_ns]

    @property
    def numbers(self):
        """The numbers of the spans, each once: the same one may come again after an answer was lost."""
        return sorted({span.attributes["i"] for span in self.spans()})

    def records(self, kind):
        return [item for path, body in list(self.taken) if path.endswith("logs") for item in items(path, body)
                if item.name == f"rollscope.{kind}"]


class FaultyServer(Taken):
    """OTLP over HTTP. `answer(path, body)` decides: a status, or a status with headers and a body, or `"reset"`, or `"hang"`.
    What it answers with 200 counts as taken."""

    def __init__(self, answer=lambda path, body: 200):
        super().__init__()
        self.answer = answer
        self.ended = threading.Event()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                said = owner.answer(self.path, body)
                if said == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.close_connection = True
                    self.connection.close()
                    return
                if said == "hang":
                    owner.ended.wait(300)
                    self.close_connection = True
                    return
                status, headers, text = said if isinstance(said, tuple) else (said, {}, b"")
                if status == 200 and not text:
                    owner.taken.append((self.path, body))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

            def handle(self):
                try:
                    super().handle()
                except (OSError, ValueError):
                    pass

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.http = Quiet(("127.0.0.1", 0), Handler)
        self.address = "http://127.0.0.1:%d/otlp" % self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def stop(self):
        self.ended.set()
        self.http.shutdown()
        self.http.server_close()

    def send_what_waits_here(self, spill):
        """Data waits in a folder per address. This makes it this server's."""
        old, = spill.iterdir()
        old.rename(spill / "127.0.0.1_{}".format(self.http.server_address[1]))


class FaultyGrpcServer(Taken, grpc.GenericRpcHandler):
    """OTLP over gRPC. `answer(path, body)` gives a status."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer
        self.grpc = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[self])
        self.address = "http://127.0.0.1:%d" % self.grpc.add_insecure_port("127.0.0.1:0")
        self.grpc.start()

    def service(self, call):
        path = "/v1/traces" if "TraceService" in call.method else "/v1/logs"

        def export(body, context):
            status = self.answer(path, body)
            if status != grpc.StatusCode.OK:
                context.abort(status, "as told")
            self.taken.append((path, body))
            return b""

        return grpc.unary_unary_rpc_method_handler(export)

    def stop(self):
        self.grpc.stop(None)


def for_seconds(seconds, fault, well=200):
    """The fault from the first request on, for a while. Then everything is taken."""
    began = []

    def answer(path, body):
        began.append(time.monotonic())
        return fault if time.monotonic() - began[0] < seconds else well

    return answer


def poisoned(fault, well=200):
    """Everything is taken, except for what names the poison."""
    return lambda path, body: fault if POISON in body else well


#: Nobody listens there: tests have no server that may.
DOWN = "http://127.0.0.1:1"

#: Every way in which a server can be unwell. `None`: there is none, as at `DOWN`.
FAULTS = {
    "healthy": lambda path, body: 200,
    "down": None,
    "slow": lambda path, body: time.sleep(0.2) or 200,
    "hanging": lambda path, body: "hang",
    "resetting": lambda path, body: "reset",
    "nonsense": lambda path, body: (200, {"content-type": "text/html"}, b"<html>please log in</html>"),
    "garbage": lambda path, body: (200, {"content-type": "application/x-protobuf"}, b"\xff" * 1000),
    "500": lambda path, body: 500,
    "503": lambda path, body: (503, {"retry-after": "1"}, b""),
    "418": lambda path, body: 418,
}


if __name__ == "__main__":
    # For `python/bench/faults.py`: a server of its own process, until its input ends.
    import sys

    server = FaultyServer(FAULTS[sys.argv[1]])
    print(server.address, flush=True)
    sys.stdin.read()
