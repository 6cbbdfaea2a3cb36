"""The manifests' pods without a cluster: their commands, variables, volumes, and probes; and KEDA's queries."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.db.models import Sum
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from config.dev.stack import processes
from config.dev.stack.ports import LOOPBACK, free
from config.dev.stack.process import Process
from exports.models import Chunk, Dataset, Job
from tests.broker import lose_messages, queued, valkey
from tests.integration.etl_factories import make_task
from tests.integration.factories import claim_one, make_job
from tests.operations import manifests
from tests.operations.manifests import FOLDER, Document, containers, objects, pods, rendered
from tests.operations.scraper import scraper
from tests.serving import serving, variables
from tests.waiting import wait_until

README = (FOLDER / "README.md").read_text()
DOCKERFILE = (FOLDER.parent / "Dockerfile").read_text()
NAMES = sorted(
    document["metadata"]["name"]
    for place, document in manifests.written()
    if place.startswith("docker/kubernetes/base/") and document["kind"] == "Deployment" and "/shared/" not in place
)
POD_IP = "10.244.7.7"
# Besides the Secret, only the servers differ between clusters.
SERVERS = ("S3_ENDPOINT_URL", "S3_PUBLIC_ENDPOINT_URL", "S3_REGION", "S3_BUCKET")
SECRETS = ("SECRET_KEY", "DATABASE_URL", "SOURCE_DATABASE_URL", "REDIS_URL", "S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY")


@dataclass
class Pod:
    """The containers of a pod as processes. Mounts are below `root`; other files of the image do not exist."""

    name: str
    root: Path
    documents: list[Document] = field(default_factory=lambda: rendered("production"))
    running: dict[str, Process] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)

    @property
    def containers(self) -> dict[str, Document]:
        return containers(pods(self.documents)[self.name])

    @property
    def main(self) -> Document:
        return self.containers["sluice"]

    @property
    def grace(self) -> float:
        return float(pods(self.documents)[self.name]["spec"].get("terminationGracePeriodSeconds", 30))

    def start(self) -> None:
        self.mount()
        for name, container in self.containers.items():  # in the order of their start
            given = self.environment(container)
            process = Process(
                name=f"{self.name}-{name}",
                command=self.localized(container, [manifests.expanded(word, given) for word in container["command"]]),
                log=self.root / "logs" / f"{name}.log",
                environment=given,
            )
            process.start()
            self.running[name] = process

    def mount(self) -> None:
        """Create each volume as a folder of its name, with the contents of its ConfigMap."""
        maps = objects(self.documents, "ConfigMap")
        for volume in pods(self.documents)[self.name]["spec"]["volumes"]:
            folder = self.root / "volumes" / volume["name"]
            folder.mkdir(parents=True)
            for name, text in maps[volume["configMap"]["name"]]["data"].items() if "configMap" in volume else ():
                (folder / name).write_text(text)
        found = re.search(r"^COPY --chmod=755 (\S+) (/usr/local/bin/worker-health)$", DOCKERFILE, re.MULTILINE)
        assert found
        script = self.root / "image" / found[2].lstrip("/")
        script.parent.mkdir(parents=True)
        text = (manifests.PROJECT / found[1]).read_text()
        assert text.startswith("#!/opt/venv/bin/python\n")
        script.write_text(text.replace("/opt/venv/bin/python", sys.executable, 1))
        script.chmod(0o755)

    def environment(self, container: Document) -> dict[str, str]:
        theirs = variables(self.root)
        secrets = {name: theirs[name] for name in SECRETS}
        given = manifests.environment(self.documents, container, secrets=secrets, ip=POD_IP)
        if not container.get("envFrom"):
            return {**given, "PATH": os.environ["PATH"]}
        given |= {name: theirs[name] for name in SERVERS if name in theirs}
        given |= {
            name: self.localized(container, [value])[0] for name, value in given.items() if value.startswith("/var/")
        }
        return {**given, **self.changes, "PATH": os.environ["PATH"]}

    def localized(self, container: Document, command: list[str]) -> list[str]:
        """Return a command with local paths of its mounts, local ports, and the local Python."""
        mounts = {mount["mountPath"]: str(self.root / "volumes" / mount["name"]) for mount in container["volumeMounts"]}
        # In one pass: the replacements themselves are below /tmp.
        anywhere = rf"(?<![\w/])({'|'.join(mounts)})(?=[/\"\0]|$)"
        text = re.sub(anywhere, lambda found: mounts[found[1]], "\0".join(command))
        for port in container.get("ports", ()):
            number = port["containerPort"]
            self.ports.setdefault(number, free(1)[0])
            text = re.sub(rf"(?<=[=\0]){number}\b", str(self.ports[number]), text)
        first, *rest = text.split("\0")
        if first.startswith("/usr/local/bin/"):
            return [str(self.root / "image" / first.lstrip("/")), *rest]
        return [sys.executable if first == "python" else first, *rest]

    def passes(self, kind: str) -> bool:
        """Run a probe like the kubelet."""
        probe = self.main[kind]
        if "exec" in probe:
            return self.execute(probe["exec"]["command"], timeout=3 * probe["timeoutSeconds"]).returncode == 0
        (port,) = (port for port in self.main["ports"] if port["name"] == probe["httpGet"]["port"])
        headers = {header["name"]: header["value"] for header in probe["httpGet"]["httpHeaders"]}
        return self.get(probe["httpGet"]["path"], port=port["containerPort"], **headers)[0] == http.HTTPStatus.OK

    def execute(self, command: list[str], *, timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.localized(self.main, command), env=self.environment(self.main), timeout=timeout,
            check=False, capture_output=True, text=True,
        )  # fmt: skip

    def get(self, path: str, *, port: int, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(LOOPBACK, self.ports[port], timeout=20)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def counted(self) -> dict[str, float]:
        """Return the metrics of the container `metrics`, by name and labels."""
        port = self.containers["metrics"]["ports"][0]["containerPort"]
        families = text_string_to_metric_families(self.get("/metrics", port=port)[1])
        return {
            " ".join((sample.name, *sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }

    def wait(self) -> None:
        self.running["sluice"].wait_until(lambda: self.passes("startupProbe"), limit=120)

    def kill(self) -> None:
        for process in self.running.values():
            process.kill()


@pytest.fixture
def pod(transactional_db: None, tmp_path: Path) -> Iterator[Pod]:
    """A pod that the test names and starts, killed at the end."""
    lose_messages()
    made = Pod("", tmp_path)
    yield made
    made.kill()


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_starts_passes_its_probes_and_stops_in_time(name: str, pod: Pod) -> None:
    pod.name = name
    pod.start()
    pod.wait()
    passed = {kind: pod.passes(kind) for kind in ("readinessProbe", "livenessProbe") if kind in pod.main}
    main = pod.running["sluice"]
    os.kill(main.pid, signal.SIGTERM)
    wait_until(lambda: not main.alive, limit=pod.grace)

    assert passed
    assert all(passed.values()), main.tail()
    # uvicorn exits by the signal after a graceful shutdown.
    assert main.exit_status == (-signal.SIGTERM if name == "web" else 0), main.tail()
    assert {"metrics"} & pod.running.keys() == {
        container for container, process in pod.running.items() if process.alive
    }


def test_the_migration_pod_completes(pod: Pod) -> None:
    pod.name = "migrate"
    pod.start()
    pod.running["sluice"].wait(limit=120)

    assert pod.running["sluice"].exit_status == 0, pod.running["sluice"].tail()


def test_web_accepts_its_host_names_and_prometheus(pod: Pod) -> None:
    pod.name, pod.changes = "web", {"METRICS_ALLOW_CIDRS": "127.0.0.0/8"}
    pod.start()
    pod.wait()
    (port,) = pod.ports

    assert pod.get("/livez", port=port, Host="sluice.example.org")[0] == 200
    assert pod.get("/livez", port=port, Host="elsewhere.example.org")[0] == 400
    assert pod.get("/metrics", port=port, Host=f"{POD_IP}:8000")[0] == 200


def test_web_stays_ready_during_a_broker_outage(pod: Pod) -> None:
    """A new release without the broker never becomes ready, but a running one stays in service."""
    (unused_port,) = free(1)
    pod.name, pod.changes = "web", {"CELERY_BROKER_URL": f"redis://{LOOPBACK}:{unused_port}/0"}
    pod.start()
    pod.running["sluice"].wait_until(lambda: pod.passes("livenessProbe"), limit=120)

    assert pod.passes("readinessProbe")
    assert not pod.passes("startupProbe")


def test_a_hung_worker_fails_its_probes(pod: Pod) -> None:
    pod.name = "worker-maintenance"
    pod.start()
    pod.wait()
    os.kill(pod.running["sluice"].pid, signal.SIGSTOP)
    failed = [not pod.passes(kind) for kind in ("readinessProbe", "livenessProbe")]
    os.kill(pod.running["sluice"].pid, signal.SIGCONT)

    assert failed == [True, True]


def test_the_metrics_container_exports_worker_metrics(pod: Pod, dataset: Dataset, alice: User) -> None:
    """Three chunks, done by forks of the worker, with a metrics folder that web does not share."""
    pod.name = "worker-exports"
    pod.start()
    pod.wait()
    make_job(dataset, alice, chunks=3)
    wait_until(lambda: pod.counted().get("export_chunks_total live") == 3)

    assert Chunk.objects.filter(status="done").count() == 3
    exported = pod.counted()
    assert exported["export_rows_total live"] == Chunk.objects.aggregate(rows=Sum("rows"))["rows"]
    # Only web exports gauges, from the rows: gauges of several pods would add up.
    assert not any(name.startswith(("export_queue_depth", "sluice_database_up")) for name in exported)


# ---- KEDA's queries --------------------------------------------------------------------------------------------
def triggers(kind: str) -> dict[str, dict[str, str]]:
    """Return the parameters of all triggers of a kind, by names such as `worker-exports depth`."""
    return {
        f"{name} {trigger['name']}": trigger["metadata"]
        for name, scaled in objects(rendered("production"), "ScaledObject").items()
        for trigger in scaled["spec"]["triggers"]
        if trigger["type"] == kind
    }


@pytest.fixture
def prometheus(transactional_db: None, tmp_path: Path) -> Iterator[Process]:
    """A Prometheus that scrapes one web process under two names, as if it were two pods."""
    (port,) = free(1)
    with serving(tmp_path, variables(tmp_path)) as web:
        targets = [f"{LOOPBACK}:{web.port}", f"localhost:{web.port}"]
        (tmp_path / "prometheus.yml").write_text(
            json.dumps({"scrape_configs": [
                {"job_name": "sluice", "scrape_interval": "1s", "static_configs": [{"targets": targets}]}
            ]})
        )  # fmt: skip
        process = scraper(tmp_path, port=port)
        process.start()
        process.wait_until(lambda: processes.responds(port, "/-/ready"))
        yield process
        process.kill()


def ask(prometheus: Process, query: str) -> list[float]:
    """Return the numbers that a query returns. KEDA's trigger accepts only a single one."""
    address = prometheus.command[-1].partition("=")[2]
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as response:
        result: list[dict[str, Any]] = json.load(response)["data"]["result"]
    return [float(series["value"][1]) for series in result]


def test_keda_prometheus_queries_match_the_rows(prometheus: Process, dataset: Dataset, alice: User) -> None:
    queries = {name: parameters["query"] for name, parameters in triggers("prometheus").items()}
    assert queries.keys() == {"worker-exports depth", "worker-exports age", "worker-etl-ocr age"}
    wait_until(lambda: all(ask(prometheus, query) == [0] for query in queries.values()))
    wait_until(lambda: len(ask(prometheus, "sluice_database_up")) == 2)

    make_job(dataset, alice, chunks=5)
    assert claim_one(backend="test")
    make_task(alice)
    Job.objects.update(created_at=timezone.now() - timedelta(minutes=11))
    # Two chunks only wait for a check of their files, two wait for a call, and one is running.
    Chunk.objects.filter(pk__in=Chunk.objects.filter(status="pending").values("pk")[:2]).update(reusable=True)
    wait_until(lambda: ask(prometheus, queries["worker-exports depth"]) == [3])
    wait_until(lambda: len(age := ask(prometheus, queries["worker-etl-ocr age"])) == 1 and age[0] > 0)
    (age,) = ask(prometheus, queries["worker-exports age"])

    threshold = float(triggers("prometheus")["worker-exports age"]["threshold"])
    assert 2 * threshold < age < 3 * threshold  # three pods


LENGTH = """
local kind = redis.call('type', KEYS[1]).ok
if kind == 'list' or kind == 'none' then return redis.call('llen', KEYS[1]) end
return redis.error_reply('neither a list nor nothing: ' .. kind)
"""


@pytest.fixture
def keda(transactional_db: None) -> Iterator[redis.Redis]:
    """A client with the permissions that the README grants to KEDA's Redis user."""
    lose_messages()
    rule = re.search(r"^ +ACL SETUSER keda on >PASSWORD (.*)$", README, re.MULTILINE)
    assert rule
    own: Any = valkey()
    own.execute_command("ACL", "SETUSER", "keda", "on", ">secret", *rule[1].split())
    where = own.connection_pool.connection_kwargs
    # KEDA's client sends HELLO with the password, like this one with protocol 3.
    client = redis.Redis(host=where["host"], port=where["port"], username="keda", password="secret", protocol=3)
    yield client
    client.close()
    own.execute_command("ACL", "DELUSER", "keda")


def test_the_keda_redis_list_length_matches_the_queued_documents(keda: redis.Redis, alice: User) -> None:
    (parameters,) = triggers("redis").values()
    name = parameters["listName"]

    def length() -> object:
        keda.ping()
        keda.select(int(parameters["databaseIndex"]))
        return keda.eval(LENGTH, 1, name)

    before = length()
    make_task(alice)
    make_task(alice, "Once more.")

    assert before == 0
    assert length() == 2 == queued(name)
    with pytest.raises(redis.exceptions.NoPermissionError):
        keda.llen("exports")
    with pytest.raises(redis.exceptions.NoPermissionError):
        keda.rpop(name)
