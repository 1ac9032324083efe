"""A lake on Azure's blob storage, as its own emulator serves it (Azurite, from npm)."""

import base64
import hashlib
import hmac
import shutil
import subprocess
import time
from email.utils import formatdate
from pathlib import Path

import deltalake
import pytest
import requests

from conftest import wait_until
from lake import COUNT, Lake, free_ports, numbers, send, total

VERSION = "3.35.0"
AZURITE = Path(__file__).parent.parent / "target" / f"azurite-{VERSION}"
# Everybody's: the emulator knows no other.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def installed():
    """The emulator."""
    program = AZURITE / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed")
        AZURITE.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--prefix", AZURITE, "--no-save", "--no-audit", "--no-fund", "--silent", f"azurite@{VERSION}"]
        if subprocess.run(command, timeout=600).returncode:
            pytest.skip("npm cannot install Azure's emulator")
    return program


def make_container(address, name):
    """Its API has a signature of its own."""
    date, version = formatdate(usegmt=True), "2021-12-02"
    lines = ["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{version}", f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"]
    signed = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(signed).decode()}"}
    answer = requests.put(f"{address}/{ACCOUNT}/{name}?restype=container", headers=headers, timeout=30)
    assert answer.status_code in (201, 409), answer.text


@pytest.fixture
def lake(tmp_path):
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    with open(tmp_path / "azurite.log", "wb") as log:
        emulator = subprocess.Popen([installed(), "--silent", "--disableTelemetry", "--skipApiVersionCheck", "--location", tmp_path / "blobs",
                                     "--blobPort", str(port)], stdout=log, stderr=log)

    def is_up():
        assert emulator.poll() is None, (tmp_path / "azurite.log").read_text()[-3000:]
        try:
            return requests.get(address, timeout=5).status_code
        except requests.ConnectionError:
            return False

    wait_until(is_up, 60)
    make_container(address, "lake")
    env = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY,
           "AZURE_STORAGE_ENDPOINT": f"{address}/{ACCOUNT}"}
    lake = Lake("deep/down", tmp_path, env)
    lake.url = "az://lake/deep/down"
    yield lake
    lake.stop()
    emulator.kill()
    emulator.wait()


def test_two_nodes_on_azure(lake):
    a, b = lake.node("a"), lake.node("b")
    send(a, "run", 0, 500)
    send(b, "run", 400, 300)
    wait_until(lambda: total(b.sql(COUNT)) == numbers(700), 30)
    assert total(lake.sql(COUNT)) == numbers(700), "another machine reads what is only in logs"
    # Several beats: an entry is changed only by whom it belongs to.
    time.sleep(25)
    for node in (a, b):
        assert node.get("/api/v1/health").json()["store"]["problems"] == []
    nodes = b.get("/api/v1/nodes").json()["nodes"]
    assert [(node["name"], node["is_there"]) for node in nodes] == [("a", True), ("b", True)]
    a.kill()
    send(b, "run", 700, 300)
    # Its successor takes over the log.
    a.start()
    assert total(a.sql(COUNT)) == numbers(1000)
    # A node that nobody starts again is taken over by another one, and signed off.
    a.kill()
    wait_until(lambda: [node["name"] for node in b.get("/api/v1/nodes").json()["nodes"]] == ["b"], 150)
    assert total(b.sql(COUNT)) == numbers(1000)
    assert b.stop() == 0
    options = {**lake.env, "AZURE_ALLOW_HTTP": "true"}
    table = deltalake.DeltaTable(f"{lake.url}/spans", storage_options=options)
    assert table.to_pyarrow_table(columns=["span_id"]).num_rows == 1000
