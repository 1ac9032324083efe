"""What stands at the other end of standard output: `| tail -1` gets clean lines, `| head -1` breaks nothing."""

import os
import subprocess

import pytest
import requests
from conftest import BINARY, FIXTURES, run, wait_until

ROLL = FIXTURES / "roll" / "roll_traces.jsonl"
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("ROLLSCOPE_")}


@pytest.fixture
def data(tmp_path):
    run("import", "--data", tmp_path / "data", ROLL)
    return tmp_path / "data"


def with_closed_pipe(*args, cwd=None):
    """A command whose standard output and error nobody reads: the pipes are closed before it writes."""
    readers, writers = zip(os.pipe(), os.pipe(), strict=True)
    for reader in readers:
        os.close(reader)
    try:
        process = subprocess.Popen([BINARY, *map(str, args)], stdout=writers[0], stderr=writers[1], env=ENVIRONMENT, cwd=cwd)
    finally:
        for writer in writers:
            os.close(writer)
    return process


def test_csv_has_the_line_ends_of_unix_from_a_folder_and_from_a_server(data, serve):
    query = "select name, service from spans order by start_ns limit 3"
    command = [BINARY, "sql", "--format", "csv", query]
    from_folder = subprocess.run([*command, "--data", data], capture_output=True, check=True, env=ENVIRONMENT).stdout
    server = serve(data)
    from_server = subprocess.run([*command, "--server", server.url], capture_output=True, check=True, env=ENVIRONMENT).stdout
    over_http = requests.post(server.url + "/api/v1/sql", json={"query": query, "format": "csv"}, timeout=60).content
    assert from_folder.startswith(b"name,service\n") and b"\r" not in from_folder
    assert from_folder == from_server == over_http


@pytest.mark.parametrize("command", [
    ["sql", "--format", "csv", "select * from spans"],
    ["sql", "--format", "json", "select * from spans"],
    ["sql", "--format", "arrow", "select * from spans"],
    ["sql", "select * from spans"],
    ["conversations"],
    ["export", "otlp"],
    ["export", "perfetto", "--out", "-"],
    ["export", "perfetto", "--format", "chrome", "--out", "-"],
    ["export", "html", "--out", "page.html", "--run", "roll"],
    ["export", "tensorboard", "--out", "tensorboard"],
    ["compact"],
    ["reindex"],
], ids=lambda c: " ".join(c[:4]))
def test_a_closed_pipe_is_no_failure(data, tmp_path, command):
    if "--run" in command:
        name = run("sql", "--data", data, "--format", "csv", "select distinct run_id from spans limit 1").stdout.splitlines()[1]
        command = [*command[:-1], name]
    process = with_closed_pipe(*command, "--data", data, cwd=tmp_path)
    assert process.wait(timeout=120) == 0
    if "page.html" in command:
        assert (tmp_path / "page.html").exists()


def test_a_closed_pipe_does_not_keep_the_work_from_being_done(tmp_path):
    dumps = sorted((FIXTURES / "slime").glob("*.pt"))[:2]
    assert with_closed_pipe("import", "--data", tmp_path / "data", ROLL, *dumps).wait(timeout=120) == 0
    assert int(run("sql", "--data", tmp_path / "data", "--format", "csv", "select count(distinct run_id) as n from spans").stdout.split()[1]) > 1
    assert with_closed_pipe("view", "--no-serve", "--out", tmp_path / "pages", dumps[0]).wait(timeout=120) == 0
    assert list((tmp_path / "pages").rglob("*.html"))


def test_what_fails_fails_with_a_closed_pipe_too(tmp_path):
    (tmp_path / "bad.jsonl").write_text("nonsense")
    assert with_closed_pipe("import", "--data", tmp_path / "data", ROLL, tmp_path / "bad.jsonl").wait(timeout=120) == 1
    assert with_closed_pipe("sql", "--data", tmp_path / "data", "select nonsense from spans").wait(timeout=120) == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [["serve", "--print-config"], ["sql", "--format", "csv", "select * from spans"]])
def test_output_that_finds_no_room_is_a_failure_with_words(data, command):
    with open("/dev/full", "w") as full:
        done = subprocess.run([BINARY, *command, "--data", data], stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert done.returncode == 1 and "No space left" in done.stderr and "panicked" not in done.stderr


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_server_whose_output_nobody_reads_keeps_running(tmp_path, command):
    """`rollscope serve | head -1`."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    steps = ["--steps", "1"] if command == "demo" else []
    process = with_closed_pipe(command, *steps, "--data", tmp_path / "data", "--listen", f"127.0.0.1:{port}", "--otlp-grpc", "", "--otlp-http", "")

    def answers():
        assert process.poll() is None, "it ended"
        try:
            return requests.get(f"http://127.0.0.1:{port}/readyz", timeout=5).ok
        except requests.ConnectionError:
            return False

    try:
        wait_until(answers, seconds=120)
        # Asked twice, it has logged between.
        wait_until(answers, seconds=120)
    finally:
        process.terminate()
    # It may not listen for signals yet.
    assert process.wait(timeout=60) in (0, -15)
