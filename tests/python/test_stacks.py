"""The stacks of processes, when the server asks for them."""

import os
import signal
import subprocess
import time

import pytest
import requests
from conftest import BINARY, wait_until

BEGIN = """
import asyncio, ctypes, os, sys, threading, time
import rollscope
rollscope.init(project="math", name="stuck", id="a run/ü")
"""

IN_PYTHON = BEGIN + """
def tokenize():
    with rollscope.span("tokenize"):
        print("inside", flush=True)
        threading.Event().wait(600)
def train():
    tokenize()
train()
"""

IN_TASKS = BEGIN + """
async def generate(n):
    await asyncio.sleep(600)
async def rollout(n):
    await generate(n)
async def main():
    with rollscope.span("rollout"):
        tasks = [asyncio.create_task(rollout(n)) for n in range(300)]
        await asyncio.sleep(0.1)
        print("inside", flush=True)
        await asyncio.gather(*tasks)
asyncio.run(main())
"""

# `PyDLL` keeps Python's lock, as an extension does that hangs.
IN_NATIVE_CODE = BEGIN + """
def all_reduce():
    with rollscope.span("all_reduce"):
        print("inside", flush=True)
        time.sleep(2.5)
        ctypes.PyDLL(None).sleep(600)
all_reduce()
"""

FORKED = BEGIN + """
def of_child():
    with rollscope.span("of child"):
        print("inside", flush=True)
        threading.Event().wait(600)
def of_parent(child):
    with rollscope.span("of parent"):
        os.waitpid(child, 0)
child = os.fork()
if child == 0:
    of_child()
else:
    of_parent(child)
"""


def ask(server, program, code, processes=1, after=0):
    """The workers that answered, and what they sent."""
    process = program.start(code, server.grpc)
    try:
        assert process.stdout.readline() == "inside\n", process.communicate()
        wait_until(lambda: requests.get(server.url + "/api/v1/runs/a%20run%2F%C3%BC/hang", timeout=10).ok)
        time.sleep(after)
        asked = requests.post(server.url + "/api/v1/runs/a%20run%2F%C3%BC/stacks", timeout=10)
        assert asked.status_code == 202 and asked.json()["run"] == "a run/ü"

        def answered():
            found = requests.get(server.url + "/api/v1/runs/a%20run%2F%C3%BC/hang", timeout=10).json()
            workers = [worker for worker in found["workers"] if worker["place"]]
            return (found, workers) if len(workers) >= processes else None

        found, workers = wait_until(answered, seconds=60)
        sent = [requests.get(f"{server.url}/api/v1/spans/{w['stacks']['trace_id']}/{w['stacks']['span_id']}", timeout=10).json() for w in workers]
        return found, workers, [next(span[of]["rollscope.stacks"] for of in ("start_attrs", "end_attrs") if "rollscope.stacks" in (span[of] or {})) for span in sent]
    finally:
        # A forked child holds the pipes open.
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        for pid in [process.pid, *map(int, children)]:
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_where_the_main_thread_is(server, program):
    found, workers, texts = ask(server, program, IN_PYTHON)
    assert workers[0]["place"].startswith("`tokenize` (<string>:"), workers
    assert f"Process {workers[0]['pid']}: " in texts[0] and '"MainThread"\n    ' in texts[0]
    assert "    train (<string>:" in texts[0] and "rollscope-stacks" not in texts[0]
    assert any(line.startswith("The main thread of ") and "`tokenize`" in line for line in found["dumps"]), found["dumps"]
    # That somebody asked is no progress of the run.
    assert "rollscope.stacks" not in {worker["last"] for worker in found["workers"]}


def test_tasks_that_wait_at_one_place_are_together(server, program):
    _, _, texts = ask(server, program, IN_TASKS)
    together = texts[0].split('"asyncio: 300 tasks"\n')[1].split("\nThread")[0].splitlines()
    assert [line.split(" (")[0].strip() for line in together] == ["sleep", "generate", "rollout"]


def test_native_code_that_keeps_pythons_lock(server, program):
    _, workers, texts = ask(server, program, IN_NATIVE_CODE, after=3)
    assert texts[0].startswith(f"Process {workers[0]['pid']}: Python's lock has not been free for 3 s\n"), texts[0][:300]
    assert workers[0]["place"].startswith("`all_reduce` (<string>:"), texts[0]


def test_a_forked_child_answers_for_itself(server, program):
    _, workers, _ = ask(server, program, FORKED, processes=2)
    places = {worker["place"].split(" ")[0] for worker in workers}
    assert places == {"`of_child`", "`of_parent`"} and len({worker["pid"] for worker in workers}) == 2


def test_the_command_asks_and_waits(server, program):
    process = program.start(IN_PYTHON, server.grpc)
    try:
        process.stdout.readline()
        wait_until(lambda: requests.get(server.url + "/api/v1/runs/a%20run%2F%C3%BC/hang", timeout=10).ok)
        # Ready to be waited for: it has given a sign of life.
        workers = lambda: requests.get(server.url + "/api/v1/runs/a%20run%2F%C3%BC/hang", timeout=10).json()["workers"]
        wait_until(lambda: any(worker["beat_ns"] for worker in workers()))
        done = subprocess.run([BINARY, "hang", "a run/ü", "--stacks", "--server", server.url], capture_output=True, text=True, check=True)
        assert "is in `tokenize` (<string>:" in done.stdout
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("args", [["--at", "1790000000"], ["--data", "."]])
def test_what_cannot_be_asked_is_refused(args, tmp_path):
    done = subprocess.run([BINARY, "hang", "x", "--stacks", *args], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "--stacks" in done.stderr
