"""The Kubernetes manifests, compared with the code, without kubectl or a cluster."""

import copy
import os
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from config.dev.stack import processes
from config.dev.stack.ports import LOOPBACK, free
from config.dev.stack.process import Process
from config.env import Environment
from config.platform.observability import counters
from tests.operations import manifests
from tests.operations.manifests import FOLDER, Document
from tests.waiting import wait_until

README = (FOLDER / "README.md").read_text()
MANIFESTS = dict(manifests.written())
DEPLOYMENTS: dict[str, Document] = {
    document["metadata"]["name"]: document
    for path in (FOLDER / "base").glob("*.yaml")
    for document in manifests.read(path.read_text())
    if document["kind"] == "Deployment"
}
WORKERS = sorted(name for name in DEPLOYMENTS if name.startswith("worker-"))
SECRET = {name.upper() for name in Environment.secrets()}
LONG_OPTIONS = {"-A": "--app", "-Q": "--queues", "-c": "--concurrency", "-n": "--hostname", "-s": "--schedule"}


def settings_of(*places: str) -> dict[str, str]:
    """Return the settings in these files. Later files override earlier ones, as in an overlay."""
    text = "\n".join((FOLDER / place / "settings.env").read_text() for place in places)
    return dict(re.findall(r"^([A-Z0-9_]+)=(.*)$", text, re.MULTILINE))


def words(command: list[str]) -> list[str]:
    """Return a command with each option as one word, such as `--queues=exports`, as in the manifests."""
    result: list[str] = []
    for word in command:
        if result and re.fullmatch(r"-[A-Za-z]|--[a-z-]+", result[-1]) and not word.startswith("-"):
            name = result.pop()
            result.append(f"{LONG_OPTIONS.get(name, name)}={word}" if name != "-m" else name)
            result += [word] if name == "-m" else []
        else:
            result.append(word)
    return ["python", *result[1:]]


def command_of(name: str) -> list[str]:
    """Return the command of a Deployment with the settings of the base substituted, as Kubernetes does."""
    (container,) = DEPLOYMENTS[name]["spec"]["template"]["spec"]["containers"]
    known = settings_of("base")
    return [re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], word) for word in container["command"]]


def option(command: list[str], name: str) -> str:
    return next(word.partition("=")[2] for word in command if word.startswith(f"{name}="))


# ---- Schemas ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("place", MANIFESTS)
def test_every_manifest_matches_its_schema(place: str) -> None:
    assert list(manifests.problems(MANIFESTS[place])) == []


def broken(kind: str, *path: str | int, value: object) -> Document:
    """Return the first manifest of a kind with one value changed."""
    document = copy.deepcopy(next(document for document in MANIFESTS.values() if document["kind"] == kind))
    inner: Any = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


POD = ("spec", "template", "spec")


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (broken("Deployment", *POD, "terminationGracePeriod", value=30), "terminationGracePeriod"),
        (broken("Deployment", *POD, "containers", 0, "livenessProbe", "periodSeconds", value="60"), "periodSeconds"),
        (broken("NetworkPolicy", "spec", "egres", value=[]), "egres"),
        (broken("PodDisruptionBudget", "spec", "maxUnavailable", value=[1]), "maxUnavailable"),
        (broken("ScaledObject", "spec", "maxReplicas", value=4), "maxReplicas"),
        (broken("ScaledObject", "spec", "triggers", 0, "metadata", "treshold", value="4"), "treshold"),
        (broken("ScaledObject", "spec", "triggers", 0, "metadata", "threshold", value=4), "threshold"),
        (broken("TriggerAuthentication", "spec", "secretTargetRef", 0, "parameter", value="adress"), "parameter"),
    ],
)
def test_a_mistake_in_a_manifest_is_found(document: Document, named: str) -> None:
    found = list(manifests.problems(document))

    assert found
    assert all(named in sentence for sentence in found)


# ---- Settings ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_settings_of_overlays_are_valid_settings(overlay: str) -> None:
    given = settings_of("base", f"overlays/{overlay}")
    secrets = {name: os.environ[name] for name in SECRET & os.environ.keys()}

    assert given.keys() <= Environment.names() - SECRET
    assert Environment(**{name.lower(): value for name, value in (secrets | given).items()})  # type: ignore[arg-type]


def test_the_readme_lists_every_secret_and_marks_the_required_ones() -> None:
    required = {name.upper() for name, field in Environment.model_fields.items() if field.is_required()}
    listed = set(re.findall(r"^ +([A-Z0-9_]+)=$", README, re.MULTILINE))
    optional_list = re.search(r"If you use them, add (.*?):", README, re.DOTALL)
    assert optional_list
    optional = set(re.findall(r"`([A-Z0-9_]+)`", optional_list[1]))

    assert listed | optional == SECRET
    assert required & SECRET <= listed
    assert not listed & optional


def test_settings_in_the_readme_and_comments_exist() -> None:
    texts = [path.read_text() for path in FOLDER.rglob("*") if path.suffix in {".yaml", ".env", ".md"}]
    named = set(re.findall(r"\b(?:ETL|EXPORT|S3|METRICS|TRUSTED|DATABASE|REDIS)_[A-Z0-9_]+\b", "\n".join(texts)))

    assert named <= Environment.names()


# ---- Processes --------------------------------------------------------------------------------------------------
def test_every_queue_is_served_by_one_deployment_and_none_serves_another() -> None:
    served = Counter(queue for name in WORKERS for queue in option(command_of(name), "--queues").split(","))

    assert served == Counter(queue.name for queue in settings.CELERY_TASK_QUEUES)


def test_the_workers_are_those_of_the_local_stack(tmp_path: Path) -> None:
    assert {name.removeprefix("worker-") for name in WORKERS} == set(processes.WORKERS)
    for name in WORKERS:
        short, command = name.removeprefix("worker-"), command_of(name)
        local = processes.worker(
            short,
            queues=processes.queue_of(short, {}),
            concurrency=int(option(command, "--concurrency")),
            root=tmp_path,
            environment={},
        )
        assert command == words(list(local.command))


def test_web_and_beat_are_those_of_the_local_stack(tmp_path: Path) -> None:
    web = words(list(processes.web(port=8000, root=tmp_path, environment={}).command))
    differs = {"--host": "0.0.0.0", "--timeout-graceful-shutdown": "20"}  # noqa: S104  the pod's address
    web = [f"{name}={differs[name]}" if (name := word.partition("=")[0]) in differs else word for word in web]
    beat = words(list(processes.beat(root=tmp_path, environment={}).command))

    assert command_of("web") == web
    assert command_of("beat")[:-1] == beat[:-1]
    assert beat[-1].startswith("--schedule=")
    assert DEPLOYMENTS["beat"]["spec"]["replicas"] == 1
    assert DEPLOYMENTS["beat"]["spec"]["strategy"] == {"type": "Recreate"}


# ---- Metrics of workers -----------------------------------------------------------------------------------------
COUNT = """
import sys
from config.platform.observability import counters
counters.configure()
from prometheus_client import Counter, Histogram
Counter("sluice_test_events", "Events.", ["kind"]).labels("good").inc(int(sys.argv[1]))
Histogram("sluice_test_seconds", "Times.", buckets=(1, 10)).observe(5)
"""
SIDECAR = "docker/kubernetes/base/shared/worker.yaml: Deployment workers"


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Process]:
    """The process of the container `metrics`, with a folder for the counters of other processes."""
    (port,) = free(1)
    (tmp_path / "metrics").mkdir()
    process = Process(
        name="counted",
        command=[sys.executable, str(FOLDER / "base" / "counted.py"), str(tmp_path / "metrics"), str(port)],
        log=tmp_path / "counted.log",
        environment={"PATH": os.environ["PATH"]},
    )
    process.start()
    try:
        process.wait_until(lambda: processes.responds(port, "/metrics"))
        yield process
    finally:
        process.kill()


def scrape(counted: Process) -> str:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{counted.command[-1]}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
def test_the_metrics_container_sums_over_all_processes_of_the_pod(counted: Process, tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    assert scrape(counted) == ""  # it has no metrics about itself
    for amount in ("2", "3"):
        environment = {**os.environ, counters.VARIABLE: str(folder)}
        subprocess.run([sys.executable, "-c", COUNT, amount], env=environment, cwd=manifests.PROJECT, check=True)
    (folder / "counter_7.db").touch()  # created just now
    files = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    scraped = scrape(counted)

    assert 'sluice_test_events_total{kind="good"} 5.0' in scraped
    assert 'sluice_test_seconds_bucket{le="10.0"} 2.0' in scraped
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == files  # its mount is read-only


def test_the_metrics_container_is_small_and_stops_immediately(counted: Process) -> None:
    status = Path(f"/proc/{counted.pid}/status").read_text()
    (sidecar,) = MANIFESTS[SIDECAR]["spec"]["template"]["spec"]["initContainers"]
    megabytes = int(sidecar["resources"]["limits"]["memory"].removesuffix("Mi"))

    assert int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024 < megabytes * 2 / 3
    counted.send_stop_signal()
    wait_until(lambda: not counted.alive, limit=10)
