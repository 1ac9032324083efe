"""Assistants: the Python SDK of the Model Context Protocol asks `rollscope mcp` over a folder, through a server, and the server's
`/mcp`; with the handshake of older versions of the protocol and without."""

import re

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from conftest import BINARY, run, wait_until

TOOLS = ["runs", "steps", "findings", "report", "diff", "critical_path", "mismatch", "hang", "traces", "conversations", "conversation", "metrics", "promql", "sql"]
PROMPTS = ["why_is_my_run_slow", "is_it_hanging", "what_changed", "show_me_reward_hacking"]
# Takes minutes, if nobody cancels it.
SLOW = "select count(*) from spans a, spans b, spans c where a.name < b.name and b.start_ns < c.end_ns"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "data"
    run("demo", "--data", folder, "--steps", "8", "--samples", "16", "--no-serve")
    return folder


def stdio(*args, **env):
    return StdioServerParameters(command=str(BINARY), args=["mcp", *map(str, args)], env=env)


def over_http(url, token=None):
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return streamable_http_client(url + "/mcp", http_client=httpx2.AsyncClient(headers=headers, timeout=120))


@pytest.fixture(params=["folder", "through a server", "http"])
def way(request, data, serve):
    """Something to connect to, once for each call."""
    if request.param == "folder":
        return lambda: stdio("--data", data)
    server = serve(data)
    return (lambda: over_http(server.url)) if request.param == "http" else (lambda: stdio("--server", server.url))


def talk(target, conversation, mode="auto"):
    async def main():
        async with Client(target, mode=mode) as client:
            return await conversation(client)

    return anyio.run(main)


def said(result):
    assert len(result.content) == 1
    return result.content[0].text


async def ask(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    text = said(result)
    assert not result.is_error, text
    assert re.search(r"\n\nPage: http://[^ ]+/#/[^ ]*$", text), text[-200:]
    assert len(text) < 25_000
    return text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_what_is_offered(way, mode):
    async def conversation(client):
        assert client.server_info.name == "rollscope" and "Call `runs`" in client.instructions
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == TOOLS
        for tool in tools:
            assert tool.description and tool.annotations.read_only_hint
            assert tool.input_schema["type"] == "object" and not tool.input_schema["additionalProperties"]
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == PROMPTS
        prompt = await client.get_prompt("why_is_my_run_slow", {"run": "demo", "step": "3"})
        assert "`demo` slow, step `3`" in prompt.messages[0].content.text
        for name in PROMPTS:
            assert (await client.get_prompt(name, {})).messages
        assert [str(r.uri) for r in (await client.list_resources()).resources] == ["rollscope://schema"]
        schema = (await client.read_resource("rollscope://schema")).contents[0].text
        assert "## spans (" in schema and "- reward (" in schema

    talk(way(), conversation, mode)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_every_tool_answers_briefly_with_a_link(way, mode):
    async def conversation(client):
        text = await ask(client, "runs")
        assert "| demo |" in text
        text = await ask(client, "steps", run="demo", limit=3)
        assert "steps 1 to 3 of 8. For more, pass offset=3." in text and "rollout" in text
        text = await ask(client, "steps", run="demo", sort="duration", limit=1)
        slowest = int(text.splitlines()[2].split("|")[1])
        assert "Findings" in await ask(client, "findings", run="dem")
        text = await ask(client, "report", run="demo", step=slowest)
        assert text.startswith(f"Step {slowest} of run demo") and "Critical path" in text and f"/#/run/demo/step/{slowest}" in text
        assert await ask(client, "report", run="demo")
        text = await ask(client, "diff", run="demo", step=2, **{"with": 3})
        assert "before" in text and "diff?step=2&with=3" in text
        assert "run/demo/now" in await ask(client, "hang", run="demo")
        assert "The critical path of step 3 of run demo" in await ask(client, "critical_path", run="demo", step=3)
        text = await ask(client, "traces", run="demo", sort="-duration", limit=2)
        trace = text.splitlines()[2].split("|")[1].strip()
        assert re.fullmatch("[0-9a-f]{32}", trace)
        assert f"The critical path of trace {trace}" in await ask(client, "critical_path", trace=trace)
        text = await ask(client, "conversations", run="demo", sort="-reward", limit=2)
        assert "pass cursor=" in text
        cursor = re.search(r"pass cursor=(\S+)", text).group(1)
        first = text.splitlines()[2].split("|")[1].strip()
        again = await ask(client, "conversations", run="demo", sort="-reward", limit=2, cursor=cursor)
        assert again.splitlines()[2].split("|")[1].strip() != first
        text = await ask(client, "conversation", id=first)
        assert "[0] " in text and "reward: " in text and "/#/conversation/" in text
        assert "[1] " in await ask(client, "conversation", id=first, message=1)
        assert "rollout/response_len" in await ask(client, "metrics", run="demo", prefix="rollout/")
        assert "1 series" in await ask(client, "promql", query="vector(1.23456789)")
        text = await ask(client, "sql", query="select run_id, count(*) as n, 1.0 / 3 as third from spans group by run_id order by n desc")
        assert "| run_id | n | third |" in text and "| 0.3333 |" in text
        assert "Only the first 5 rows are shown" in await ask(client, "sql", query="select name from spans", limit=5)

    talk(way(), conversation, mode)


def test_mistakes_are_explained(way):
    async def conversation(client):
        for tool, arguments, words in [
            ("steps", {}, "run"),
            ("steps", {"run": "nobody"}, "nobody"),
            ("steps", {"run": "demo", "rnu": 1}, "unknown parameter `rnu`; expected one of: run"),
            ("steps", {"run": "demo", "limit": 0}, "limit"),
            ("steps", {"run": ["demo"]}, "run"),
            ("report", {"run": "demo", "step": 999}, "no step 999"),
            ("report", {"run": "demo", "step": "soon"}, "an integer"),
            ("diff", {"run": "demo", "step": 1}, "with"),
            ("critical_path", {}, "trace"),
            ("critical_path", {"trace": "xyz"}, "hex"),
            ("traces", {"status": "bad"}, "unset, ok or error"),
            ("conversations", {"search": "(("}, "search"),
            ("conversation", {"id": "nobody"}, "nobody"),
            ("promql", {"query": "sum("}, "parameter `query`: unclosed"),
            ("promql", {"query": "up", "time": "soon"}, "RFC 3339"),
            ("sql", {"query": "selec 1"}, "selec"),
            ("sql", {"query": "drop table runs"}, ""),
            ("sql", {"query": "copy (select 1) to '/tmp/x.csv'"}, ""),
            ("sql", {"query": "select 1", "limit": 1000}, "200"),
        ]:
            result = await client.call_tool(tool, arguments)
            assert result.is_error and words in said(result), (tool, arguments, said(result))
        with pytest.raises(MCPError, match="unknown tool `hack`; expected one of: runs"):
            await client.call_tool("hack", {})
        with pytest.raises(MCPError, match="unknown prompt"):
            await client.get_prompt("hack", {})
        with pytest.raises(MCPError, match="unknown resource|not found|Resource"):
            await client.read_resource("rollscope://hack")
        # And it goes on.
        assert "| demo |" in await ask(client, "runs")

    talk(way(), conversation)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_cancelled_call_ends_its_query(data, serve, mode):
    server = serve(data)
    queries = lambda: [q for q in server.get("/api/v1/queries").json()["queries"] if "spans c" in q["sql"]]

    async def conversation(client):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "sql", {"query": SLOW})
            await anyio.to_thread.run_sync(lambda: wait_until(queries))
            tasks.cancel_scope.cancel()
        if mode == "auto":
            await anyio.to_thread.run_sync(lambda: wait_until(lambda: not queries()))
        assert "| demo |" in await ask(client, "runs")

    talk(over_http(server.url), conversation, mode)
    wait_until(lambda: not queries())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_cancelled_call_over_a_folder_leaves_room_for_the_next(data, mode):
    async def conversation(client):
        # More than run at the same time: each must make room.
        for _ in range(12):
            with anyio.move_on_after(0.5):
                await client.call_tool("sql", {"query": SLOW})
        assert "| demo |" in await ask(client, "runs")
        assert "| 1 |" in await ask(client, "sql", query="select 1 as one")

    talk(stdio("--data", data), conversation, mode)


def test_a_hundred_calls(way):
    async def conversation(client):
        for n in range(25):
            assert "| demo |" in await ask(client, "runs")
            assert f"Step {n % 8} of run demo" in await ask(client, "report", run="demo", step=n % 8)
            assert f"| {n} |" in await ask(client, "sql", query=f"select {n} as n")
            assert (await client.call_tool("steps", {"run": "nobody"})).is_error

    talk(way(), conversation)


def test_many_at_once(data, serve):
    server = serve(data)

    async def conversation(client):
        async with anyio.create_task_group() as tasks:
            for n in range(40):
                tasks.start_soon(lambda n=n: ask(client, "sql", query=f"select count(*) as n from spans where step = {n % 8}"))

    talk(over_http(server.url), conversation)


def test_tokens(data, serve, tmp_path):
    (tmp_path / "tokens").write_text("ingest aaaaaaaaaaaaaaaa trainer\nread bbbbbbbbbbbbbbbb assistant\n")
    server = serve(data, "--token-file", tmp_path / "tokens")

    async def runs(client):
        return await ask(client, "runs")

    assert "| demo |" in talk(over_http(server.url, "bbbbbbbbbbbbbbbb"), runs)
    assert "| demo |" in talk(stdio("--server", server.url, ROLLSCOPE_TOKEN="bbbbbbbbbbbbbbbb"), runs)
    for token in (None, "aaaaaaaaaaaaaaaa", "wrong"):
        with pytest.RaisesGroup(MCPError, allow_unwrapped=True, flatten_subgroups=True):
            talk(over_http(server.url, token), runs)
        done = run("mcp", "--server", server.url, *(["--token", token] if token else []), check=False, input="")
        assert done.returncode == 1 and ("token" in done.stderr), done.stderr
        assert done.stdout == ""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert server.post("/mcp", json=message).status_code == 401
    assert server.post("/mcp", json=message, headers={"authorization": "Bearer aaaaaaaaaaaaaaaa"}).status_code == 403


def test_pages_of_other_sites_cannot_ask(data, serve):
    server = serve(data)
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"accept": "application/json, text/event-stream"}
    assert server.post("/mcp", json=message, headers=accept).json()["result"]["tools"]
    assert server.post("/mcp", json=message, headers={**accept, "origin": "https://evil.example"}).status_code == 403
    assert server.post("/mcp", json=message, headers={**accept, "host": "evil.example"}).status_code == 403
    assert server.post("/mcp", data=b"x" * (2 << 20), headers={**accept, "content-type": "application/json"}).status_code == 413
    assert server.post("/mcp", data=b"{", headers={**accept, "content-type": "application/json"}).status_code in (400, 415)
    assert server.get("/mcp").status_code == 405


def test_a_folder_is_followed_while_a_server_writes_it(data, serve, tmp_path):
    server = serve(tmp_path / "live")

    async def conversation(client):
        assert "No runs." in await ask(client, "runs")
        span = {"traceId": "0" * 31 + "1", "spanId": "0" * 15 + "1", "name": "train", "startTimeUnixNano": "1700000000000000000",
                "endTimeUnixNano": "1700000001000000000", "attributes": [{"key": "rl.step", "value": {"intValue": "1"}}]}
        resource = {"attributes": [{"key": "rl.run.id", "value": {"stringValue": "fresh"}}]}
        sent = server.otlp_json({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]})
        assert sent.ok
        assert "| fresh |" in await ask(client, "runs")

    talk(stdio("--data", tmp_path / "live", "--page", "http://box:7200"), conversation)


def test_a_folder_or_server_that_is_not_there(tmp_path):
    done = run("mcp", "--data", tmp_path, check=False, input="")
    assert done.returncode == 1 and str(tmp_path) in done.stderr and done.stdout == ""
    done = run("mcp", "--server", "http://127.0.0.1:1", check=False, input="")
    assert done.returncode == 1 and "rollscope serve" in done.stderr and done.stdout == ""
