"""A page of SGLang-shaped metrics for tests. It changes when it is told to (`advance`). With `times`, samples carry times of their
own: then two scrapers that have both seen every state of the page hold exactly the same samples."""

import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BOUNDS = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, math.inf]


class Exporter:
    def __init__(self, times=False, names="sglang:"):
        self.own_times = times
        self.names = names
        self.lock = threading.Lock()
        self.tick = 0
        self.times = []
        self.status = 200
        self.leave_out = ()
        self.page = None
        self.resets = {}
        self.advance()
        handler = type("Handler", (Handler,), {"exporter": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/metrics"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def advance(self, restart=None):
        """The next state; counters of an engine may begin again with it."""
        with self.lock:
            self.tick += 1
            if restart is not None:
                self.resets[restart] = self.tick
            last = self.times[-1] if self.times else 0
            self.times.append(max(last + 1, int(time.time() * 1000)))

    def get(self):
        with self.lock:
            if self.status != 200:
                return self.status, "out of order\n"
            return 200, self.page if self.page is not None else self.text()

    def text(self):
        n, families = self.tick, {}
        at = f" {self.times[-1]}" if self.own_times else ""
        p = self.names

        def put(name, labels, value):
            if name in self.leave_out:
                return
            inside = ",".join(f'{k}="{v}"' for k, v in labels.items())
            value = "NaN" if math.isnan(value) else repr(float(value))
            family = next(family for family in families if name in (family, family + "_bucket", family + "_sum", family + "_count"))
            families[family].append(f"{p}{name}{{{inside}}} {value}{at}")

        for kind, names in {
            "gauge": ["num_queue_reqs", "num_running_reqs", "gen_throughput", "cache_hit_rate", "token_usage"],
            "counter": ["prompt_tokens_total", "num_requests_total"],
            "histogram": ["e2e_request_latency_seconds", "time_to_first_token_seconds", "kv_transfer_speed_gb_s"],
        }.items():
            families |= {name: [f"# HELP {p}{name} as SGLang has it\n# TYPE {p}{name} {kind}"] for name in names}
        for engine in range(3):
            since = n - self.resets.get(engine, 0)
            start = 500.0 if engine in self.resets else 4000.0
            base = {"model_name": "qwen", "engine_type": ["unified", "prefill", "decode"][engine]}
            for rank in range(2):
                labels = {**base, "tp_rank": rank}
                put("num_queue_reqs", labels, max(0, round(20 * math.sin(n / 3 + engine)) + rank))
                put("num_running_reqs", labels, 30 + (n * 7 + engine * 3) % 11)
                put("gen_throughput", labels, 1000 / (1 + (n + engine) % 5) + 0.1 * rank)
                put("cache_hit_rate", labels, math.nan if (n + engine) % 9 == 0 else 0.3 + 0.01 * (n % 7))
                put("token_usage", labels, 0.5 + 0.5 * math.sin(n / 5))
            put("prompt_tokens_total", base, start + 137.5 * since + 11 * engine)
            put("num_requests_total", base, start + 3 * since)
            for name, scale in [("e2e_request_latency_seconds", 1.0), ("time_to_first_token_seconds", 0.2),
                                ("kv_transfer_speed_gb_s", 2.0)]:
                total, cumulative = 0.0, []
                for i, bound in enumerate(BOUNDS):
                    total += (10 + start / 100 + since * (1 + (i + engine) % 4)) * (0.5 if i == 6 else 1)
                    cumulative.append((bound, math.floor(total)))
                for bound, count in cumulative:
                    le = "+Inf" if math.isinf(bound) else repr(bound)
                    put(name + "_bucket", {**base, "le": le}, count)
                put(name + "_sum", base, cumulative[-1][1] * 0.7 * scale)
                put(name + "_count", base, cumulative[-1][1])
        return "\n".join(line for lines in families.values() for line in lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    exporter: Exporter

    def do_GET(self):
        status, text = self.exporter.get()
        body = text.encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # A scraper that lost patience.

    def log_message(self, *_):
        pass
