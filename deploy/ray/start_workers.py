"""A rollscope worker on each node of a Ray cluster.

    python start_workers.py start --data s3://bucket/prefix [--follow]
    python start_workers.py status
    python start_workers.py stop

The program `rollscope` must be on every node (install the wheel). Each worker is a child of a detached actor that is bound to
its node, asks for no CPU and no GPU, and starts the worker again when it ends. Ray starts the actor again when that ends. Run
`start` again when nodes joined, or leave it running with --follow.
"""

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

NAMESPACE = "rollscope"
PREFIX = "worker-of-"
# Credentials of the shell that starts the workers go along. Nodes that have their own need none.
CREDENTIALS = ("AWS_", "GOOGLE_", "AZURE_")
LOOK_EVERY_S = 10
LONGEST_PAUSE_S = 30
STOP_S = 20
PR_SET_PDEATHSIG = 1


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Worker:
    """Keeps one `rollscope executor` running."""

    def __init__(self, program: str, data: str, port: int, env: dict[str, str]):
        host = ray.util.get_node_ip_address()
        host = f"[{host}]" if ":" in host else host
        self.command = [
            program, "executor", "--data", data, "--node", f"ray-{ray.get_runtime_context().get_node_id()[:16]}",
            "--internal", f"{'[::]' if ':' in host else '0.0.0.0'}:{port}", "--advertise", host,
        ]
        self.env = env
        self.process: subprocess.Popen | None = None
        self.says = "starts"
        self.stopping = threading.Event()
        # Linux tells the child when the thread ends that started it, so this one stays.
        self.keeper = threading.Thread(target=self.keep, name="keeper", daemon=True)
        self.keeper.start()

    def keep(self) -> None:
        pause = 1.0
        while not self.stopping.is_set():
            begun = time.monotonic()
            try:
                self.once()
            except OSError as e:
                self.says = f"cannot start: {e}"
            if time.monotonic() - begun > LONGEST_PAUSE_S:
                pause = 1.0
            self.stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def once(self) -> None:
        libc = ctypes.CDLL(None)
        process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            # If Ray kills the actor, the worker gets SIGTERM and signs off.
            env={**os.environ, **self.env}, preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509
        )
        self.process = process
        if self.stopping.is_set():
            process.terminate()
        last = ""
        for line in process.stdout or []:
            # Into the log of the actor, which Ray's dashboard shows.
            print(line, end="", flush=True)
            last = line.strip() or last
            if line.startswith("worker "):
                self.says = line.strip()
        self.says = f"ended with exit code {process.wait()}: {last}"

    def status(self) -> dict:
        process = self.process
        return {"says": self.says, "pid": process.pid if process and process.poll() is None else None}

    def stop(self) -> None:
        self.stopping.set()
        if self.process and self.process.poll() is None:
            self.process.terminate()
        self.keeper.join(STOP_S)


def nodes() -> dict[str, str]:
    """The nodes that are alive, with their addresses."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def workers() -> dict:
    """The actors, by the node that each is bound to."""
    named = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE]
    found = {}
    for name in named:
        try:
            found[name.removeprefix(PREFIX)] = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            continue  # It has just ended.
    return found


def start_workers(data: str, program: str = "rollscope", port: int = 0, env: dict[str, str] | None = None) -> list[str]:
    """Starts what is missing, and returns the nodes that got a worker. What is bound to a node that is gone ends."""
    there, running = nodes(), workers()
    for node in running.keys() - there.keys():
        ray.kill(running[node], no_restart=True)
    missing = sorted(there.keys() - running.keys())
    for node in missing:
        Worker.options(
            name=f"{PREFIX}{node}", namespace=NAMESPACE, lifetime="detached", get_if_exists=True,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(program, data, port, env or {})
    return missing


def status() -> dict[str, str]:
    """What each worker says, by node."""
    asked = {node: worker.status.remote() for node, worker in workers().items()}
    answers = {}
    for node, answer in asked.items():
        try:
            answers[node] = ray.get(answer, timeout=10)["says"]
        except Exception as e:
            answers[node] = f"does not answer: {type(e).__name__}"
    return answers


def stop_workers() -> int:
    running = workers()
    asked = [worker.stop.remote() for worker in running.values()]
    ray.wait(asked, num_returns=len(asked), timeout=STOP_S + 5) if asked else None
    for worker in running.values():
        ray.kill(worker, no_restart=True)
    return len(running)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=["start", "status", "stop"])
    parser.add_argument("--data", default=os.environ.get("ROLLSCOPE_DATA"), help="the lake, such as s3://bucket/prefix")
    parser.add_argument("--address", default="auto", help="the Ray cluster, as ray.init() takes it")
    parser.add_argument("--rollscope", default="rollscope", help="the program on the nodes")
    parser.add_argument("--port", type=int, default=0, help="port of each worker, such as 7201 for a firewall; 0: any")
    parser.add_argument("--follow", action="store_true", help="keep running, and start workers on nodes that join")
    args = parser.parse_args()
    if args.what == "start" and not args.data:
        parser.error("start needs --data (or ROLLSCOPE_DATA), such as s3://bucket/prefix")
    return args


def main() -> None:
    args = arguments()
    ray.init(address=args.address, namespace=NAMESPACE, log_to_driver=False, logging_level="WARNING")
    if args.what == "stop":
        print(f"{stop_workers()} workers stopped")
        return
    if args.what == "start":
        env = {key: value for key, value in os.environ.items() if key.startswith(CREDENTIALS)}
        while True:
            for node in start_workers(args.data, args.rollscope, args.port, env):
                print(f"started on {nodes().get(node, 'a node that has gone')} ({node})", flush=True)
            if not args.follow:
                break
            time.sleep(LOOK_EVERY_S)
    for node, says in sorted(status().items()):
        print(f"{nodes().get(node, 'gone')}  {says}")


if __name__ == "__main__":
    sys.exit(main())
