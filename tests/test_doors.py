"""Who gets in, and what those outside can do about it: connections, tokens with scopes, certificates, the audit log."""

import json
import os
import resource
import shutil
import socket
import ssl
import subprocess
import time

import grpc
import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from conftest import FIXTURES, run, wait_until
from otlp import request, span

# What an HTTP/2 client sends first: the preface and empty settings. After that, it keeps silent.
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PING, ACK = 6, 1


def bearer(token):
    return {"authorization": f"Bearer {token}"}


def token_file(tmp_path, text):
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(0o600)
    return path


def silent(address):
    host, port = address.split("//")[-1].rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(HTTP2)
    return connection


def ended(connection):
    """Reads until the other side closes. Answers pings, as an attacker would."""
    data = b""
    try:
        while True:
            got = connection.recv(65536)
            if not got:
                return True
            data += got
            while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
                length = int.from_bytes(data[:3], "big")
                if data[3] == PING and not data[4] & ACK:
                    connection.sendall(data[:4] + bytes([ACK]) + data[5:9 + length])
                data = data[9 + length:]
    except ConnectionError:
        return True


def test_silent_connections_do_not_keep_out_those_with_a_token(serve, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("[server.limits]\nmax_connections = 100\nheader_timeout_s = 600\n")
    server = serve(None, "--config", str(config), env={"ROLLSCOPE_TOKEN": "s3cret"})
    strangers = [silent(address) for _ in range(100) for address in (server.url, server.grpc, server.http)]
    # One that asks without a token, and then keeps the connection.
    asking = requests.Session()
    assert asking.get(server.url + "/api/v1/runs", timeout=10).status_code == 401
    assert requests.get(server.url + "/api/v1/runs", headers=bearer("s3cret"), timeout=10).ok
    stub = TraceServiceStub(grpc.insecure_channel(server.grpc_target))
    stub.Export(request([span(1)]), metadata=[("authorization", "Bearer s3cret")], timeout=10)
    # A connection with a token keeps its place, whatever comes.
    strangers += [silent(server.grpc) for _ in range(200)]
    stub.Export(request([span(2)]), metadata=[("authorization", "Bearer s3cret")], timeout=10)
    assert ended(strangers[0])
    text = requests.get(server.url + "/metrics", headers=bearer("s3cret"), timeout=10).text
    assert "rollscope_connections_refused_total 0" in text
    for connection in strangers:
        connection.close()


def test_silent_connections_are_closed(serve, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("[server.limits]\nheader_timeout_s = 1\nkeep_alive_s = 1\n")
    server = serve(None, "--config", str(config), env={"ROLLSCOPE_TOKEN": "s3cret"})
    assert all(ended(silent(address)) for address in (server.url, server.grpc, server.http))


def test_a_token_does_what_its_scopes_say(serve, tmp_path):
    path = token_file(tmp_path, "# who may do what\ningest iii trainers\nread rrr grafana\nadmin aaa alice\n")
    server = serve(None, "--token-file", str(path))

    def send(token, number):
        return requests.post(server.http + "/v1/traces", data=request([span(number)], rl__run__id="r").SerializeToString(),
                             headers={"content-type": "application/x-protobuf", **bearer(token)}, timeout=10)

    assert send("iii", 1).ok and send("aaa", 2).ok
    refused = send("rrr", 3)
    assert refused.status_code == 403
    assert refused.json()["detail"] == "this token allows `read`, and this request needs `ingest`; use another token"
    stub = TraceServiceStub(grpc.insecure_channel(server.grpc_target))
    with pytest.raises(grpc.RpcError) as failed:
        stub.Export(request([span(4)]), metadata=[("authorization", "Bearer rrr")], timeout=10)
    assert failed.value.code() == grpc.StatusCode.PERMISSION_DENIED
    query = {"query": "select count(*) from spans", "format": "json"}
    assert server.post("/api/v1/sql", json=query, headers=bearer("rrr")).json()["rows"] == [[2]]
    assert server.post("/api/v1/sql", json=query, headers=bearer("iii")).status_code == 403
    for token in ("iii", "rrr"):
        assert server.delete("/api/v1/runs/r", headers=bearer(token)).status_code == 403
        assert server.put("/api/v1/runs/r/tags", json={"tags": ["a"]}, headers=bearer(token)).status_code == 403
    assert server.delete("/api/v1/runs/r", headers=bearer("aaa")).status_code == 204

    # The file is read again: new tokens count, old ones are gone, and a bad file changes nothing.
    token_file(tmp_path, "admin bbb bob\n")
    wait_until(lambda: server.get("/api/v1/runs", headers=bearer("bbb")).ok)
    assert server.get("/api/v1/runs", headers=bearer("aaa")).status_code == 401
    token_file(tmp_path, "everything ccc\nadmin ddd\n")
    time.sleep(1.5)
    assert server.get("/api/v1/runs", headers=bearer("bbb")).ok and server.get("/api/v1/runs", headers=bearer("ddd")).status_code == 401

    audit = server.data / "audit.log"
    assert audit.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    seen = {(line["who"], line["method"], line["path"], line["status"]) for line in lines}
    assert {("alice", "DELETE", "/api/v1/runs/r", 204), ("trainers", "DELETE", "/api/v1/runs/r", 403),
            ("grafana", "POST", "/v1/traces", 403), ("nobody", "GET", "/api/v1/runs", 401)} <= seen
    assert {line["peer"] for line in lines} == {"127.0.0.1"}
    assert not any(token in audit.read_text() for token in ("iii", "rrr", "aaa", "bbb"))


def test_a_token_file_that_says_nothing_is_refused(tmp_path):
    for text in ("", "# nobody\n", "one\ntwo\n"):
        path = token_file(tmp_path, text)
        done = run("serve", "--data", tmp_path / "data", "--token-file", path, "--listen", "127.0.0.1:0", "--otlp-grpc", "", "--otlp-http", "", check=False)
        assert done.returncode == 2 and str(path) in done.stderr, done.stderr


def test_a_token_on_the_command_line_is_warned_of(serve, tmp_path):
    warning = "every user of this machine can see the value of --token"
    for number, (flags, env, warned) in enumerate([(("--token", "s3cret"), {}, True), (("--token=s3cret",), {}, True),
                                                   ((), {"ROLLSCOPE_TOKEN": "s3cret"}, False)]):
        server = serve(tmp_path / str(number), *flags, env=env)
        server.stop()
        log = (tmp_path / f"{number}.log").read_text()
        assert (warning in log) == warned and "s3cret" not in log
    assert "list of processes" in " ".join(run("serve", "--help").stdout.split())


def test_what_is_stored_is_for_its_owner_alone(serve, tmp_path):
    data = tmp_path / "data"
    run("import", FIXTURES / "slime" / "small.pt", "--data", data, "--run", "r")
    server = serve(data)
    server.get("/api/v1/runs/r/report")
    requests.delete(server.url + "/api/v1/runs/none", timeout=30)
    server.stop()
    files = [path for path in data.rglob("*") if path.is_file()]
    assert {path.relative_to(data).parts[0] for path in files} >= {"spans", "samples", "conversations", "index", "commits.log", "audit.log"}
    # The files of tantivy are what it makes them. Nobody else gets into the folder.
    others = [path for path in files if path.stat().st_mode & 0o077 and path.relative_to(data).parts[0] != "index"]
    folders = [path for path in [data, *data.rglob("*")] if path.is_dir() and path.stat().st_mode & 0o077]
    assert (others, folders) == ([], [])


@pytest.fixture
def certificates(tmp_path):
    """An authority, what it signed for the server and a client, and a client of somebody else."""
    if not shutil.which("openssl"):
        pytest.fail("this test needs openssl")

    def openssl(*args):
        subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, cwd=tmp_path)

    for ca in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-days", "2", "-subj", f"/CN={ca}")
    (tmp_path / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name, ca in (("server", "ca"), ("client", "ca"), ("stranger", "other")):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "2",
                "-extfile", "names", "-out", f"{name}.pem")
    return lambda name: str(tmp_path / name)


def test_client_certificates(serve, certificates):
    server = serve(None, "--tls-cert", certificates("server.pem"), "--tls-key", certificates("server.key"),
                   "--tls-client-ca", certificates("ca.pem"))
    ask = lambda **kwargs: requests.get(server.url + "/api/v1/runs", verify=certificates("ca.pem"), timeout=10, **kwargs)
    assert ask(cert=(certificates("client.pem"), certificates("client.key"))).ok
    for cert in (None, (certificates("stranger.pem"), certificates("stranger.key"))):
        with pytest.raises(requests.exceptions.ConnectionError):
            ask(cert=cert)
    read = lambda name: open(certificates(name), "rb").read()
    export = lambda *credentials: TraceServiceStub(grpc.secure_channel(server.grpc_target, grpc.ssl_channel_credentials(
        read("ca.pem"), *map(read, credentials)))).Export(request([span(1)]), timeout=10)
    export("client.key", "client.pem")
    for credentials in ((), ("stranger.key", "stranger.pem")):
        with pytest.raises(grpc.RpcError) as refused:
            export(*credentials)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_tls_refuses_what_is_old_or_is_not_tls(serve, certificates):
    server = serve(None, "--tls-cert", certificates("server.pem"), "--tls-key", certificates("server.key"))
    host, port = server.url.split("//")[1].rsplit(":", 1)
    context = ssl.create_default_context(cafile=certificates("ca.pem"))
    for version, protocols in ((ssl.TLSVersion.TLSv1_2, ["h2"]), (ssl.TLSVersion.TLSv1_3, ["http/1.1"])):
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(protocols)
        with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname="localhost") as tls:
            assert tls.selected_alpn_protocol() == protocols[0]
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    # It is the server that refuses.
    with socket.create_connection((host, int(port))) as plain, pytest.raises(ssl.SSLError, match="ALERT"):
        context.wrap_socket(plain, server_hostname="localhost")
    with pytest.raises(requests.exceptions.RequestException):
        requests.get(server.url.replace("https", "http") + "/healthz", timeout=10)
    # A certificate that the client does not trust.
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(server.url + "/healthz", verify=certificates("other.pem"), timeout=10)
    assert requests.get(server.url + "/healthz", verify=certificates("ca.pem"), timeout=10).ok


def test_a_peer_may_send_so_many_requests(serve, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("[server.limits]\nmax_requests_per_peer_s = 5\n")
    server = serve(None, "--config", str(config))
    session = requests.Session()
    answers = [session.get(server.url + "/api/v1/health", timeout=10) for _ in range(200)]
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = answers[-1] if answers[-1].status_code == 429 else next(a for a in answers if a.status_code == 429)
    assert refused.headers["retry-after"] == "1" and refused.json()["limit"] == "max_requests_per_peer_s"


def test_sql_stays_within_its_memory(serve, tmp_path):
    """Each of these made gigabytes, of texts that are in the query or of a few rows."""
    server = serve()
    stub = TraceServiceStub(grpc.insecure_channel(server.grpc_target))
    for batch in range(4):
        stub.Export(request([span(1 + batch * 5000 + i) for i in range(5000)]), timeout=60)
    long = "x" * 450_000
    doubled = "select name as x from spans"
    for _ in range(14):
        doubled = f"select x || x as x from ({doubled})"
    before = server.memory()
    for query in (f"select max(replace(name, 'o', '{long}')) from spans",
                  f"select count(distinct replace(service, 't', '{long}')) from spans",
                  f"select length(replace('{long}', 'x', '{long}'))",
                  f"select sum(length(x)) from ({doubled})"):
        try:
            answer = server.post("/api/v1/sql", json={"query": query, "format": "json"})
        except requests.exceptions.ChunkedEncodingError:
            continue  # The limit was reached after the response had begun.
        assert answer.ok or any(word in answer.json()["detail"] for word in ("memory_bytes", "made from literals")), answer.text
    answer = server.post("/api/v1/sql", json={"query": f"select '{long}' as x from spans limit 500", "format": "json"})
    assert answer.ok
    # memory_bytes is 1 GiB; the rest is what the server holds of the batches themselves.
    assert server.memory() - before < 1600


def test_credentials_in_the_address_of_a_target_are_sent_and_not_shown(serve):
    import base64
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    seen = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers.get("authorization"))
            self.send_response(503)
            self.end_headers()

        def log_message(self, *_):
            pass

    page = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    Thread(target=page.serve_forever, daemon=True).start()
    try:
        address = f"127.0.0.1:{page.server_port}/metrics"
        server = serve(None, "--scrape", f"http://user:s3cret@{address}@200ms")
        wait_until(lambda: any(t["up"] is False for t in server.get("/api/v1/scrape").json()["targets"]))
        assert seen[0] == "Basic " + base64.b64encode(b"user:s3cret").decode()
        shown = [server.get("/api/v1/scrape").text, server.get("/api/v1/health").text]
        with open(server.log.name) as log:
            shown.append(log.read())
        assert all(address in text and "s3cret" not in text for text in shown), shown
    finally:
        page.shutdown()
        page.server_close()


def test_many_files_are_allowed(serve):
    """The server takes as many open files as it may have, so that connections do not run out of them."""
    server = serve()
    with open(f"/proc/{server.process.pid}/limits") as limits:
        soft, hard = next(line.split()[3:5] for line in limits if line.startswith("Max open files"))
    assert soft == hard, (soft, hard, os.getpid(), resource.getrlimit(resource.RLIMIT_NOFILE))
