"""A page of SGLang's metrics as one version of `prometheus_client` serves it: started as a program of its own, with that
version on its path, once over `start_http_server` and once as the ASGI app that SGLang mounts."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, make_asgi_app, start_http_server

registry = CollectorRegistry()
labels = {"model_name": "qwen", "tp_rank": "0"}
Gauge("sglang:num_running_reqs", "requests that run", list(labels), registry=registry).labels(**labels).set(7)
Gauge("sglang:gen_throughput", "tokens per second", registry=registry).set(123.5)
Counter("sglang:prompt_tokens_total", "tokens of prompts", list(labels), registry=registry).labels(**labels).inc(42)
latency = Histogram("sglang:e2e_request_latency_seconds", "latency", list(labels), buckets=(0.5, 1, 5), registry=registry)
for seconds in (0.2, 0.7, 3, 9):
    latency.labels(**labels).observe(seconds)
Summary("sglang:func_latency_seconds", "a summary", registry=registry).observe(2.5)


class Asgi(BaseHTTPRequestHandler):
    """Just enough of a server to run the ASGI app."""

    def do_GET(self):
        import asyncio
        sent = []

        async def send(message):
            sent.append(message)

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        headers = [(k.lower().encode(), v.encode()) for k, v in self.headers.items()]
        scope = {"type": "http", "method": "GET", "path": "/metrics", "query_string": b"", "headers": headers}
        asyncio.run(make_asgi_app(registry)(scope, receive, send))
        self.send_response(sent[0]["status"])
        for name, value in sent[0]["headers"]:
            self.send_header(name.decode(), value.decode())
        self.end_headers()
        self.wfile.write(sent[1]["body"])

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    if sys.argv[1] == "asgi":
        server = ThreadingHTTPServer(("127.0.0.1", 0), Asgi)
        print(server.server_address[1], flush=True)
        server.serve_forever()
    else:
        # It tells its server since 0.19.
        server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
        print(server.server_port, flush=True)
        thread.join()
