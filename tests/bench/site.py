"""An installation for benchmarks. Servers are configured in the environment. Workers and web are started here."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import psycopg
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from knox.models import AuthToken

from config.dev.stack import process_tree, processes
from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process
from exports.core import planning
from exports.jobs import submission
from exports.models import Dataset, Job, Slot
from tests.waiting import wait_until

LIMIT_SECONDS = 1200
POLL_SECONDS = 0.02  # negligible for the measurements
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def prepare(*, slots: int | None = None) -> User:
    """Create tables and slots. Return the user who submits the measured jobs."""
    call_command("migrate", verbosity=0)
    Slot.objects.provide(count=slots or settings.SLUICE.export_db_slots)
    return User.objects.create_user("bench")


def in_source(statements: str) -> None:
    with psycopg.connect(settings.SLUICE.source_url, autocommit=True) as connection:
        connection.execute(statements)


def make_dataset(name: str, function: str) -> Dataset:
    return Dataset.objects.create(name=name, function=function, base_path=name)


def token_of(user: User) -> str:
    return str(AuthToken.objects.create(user)[1])


# ---- Jobs -----------------------------------------------------------------------------------------------------------


def submit(
    dataset: Dataset,
    pairs: list[planning.Pair],
    user: User,
    *,
    reuse: str = "never",
    shape: planning.Shape = planning.Shape(),  # noqa: B008 - immutable
) -> Job:
    request = submission.ExportRequest(
        dataset=dataset, pairs=pairs, duplicates=0, shape=shape, delivery="manifest", reuse=reuse,
        allow_degraded=True,
    )  # fmt: skip
    job, _replayed = submission.submit(lambda: request, submission.Caller(user_id=user.pk))
    return job


def wait_for(job: Job, *, limit: float = LIMIT_SECONDS, every: float = POLL_SECONDS) -> None:
    """Wait for the job's receipt."""
    ended = Job.objects.filter(pk=job.pk).ended().values_list("status", flat=True)
    wait_until(ended.exists, limit=limit, every=every)
    assert ended.get() == "success"


def timed(dataset: Dataset, pairs: list[planning.Pair], user: User, *, reuse: str = "never") -> float:
    """Return the seconds from the submission of a job to its receipt."""
    started = time.perf_counter()
    wait_for(submit(dataset, pairs, user, reuse=reuse))
    return time.perf_counter() - started


# ---- Processes ------------------------------------------------------------------------------------------------------


def default_environment(changes: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment variables of a Sluice process, with the default logs and metrics."""
    metrics = Path(os.environ["TMPDIR"]) / "metrics"
    metrics.mkdir(exist_ok=True)
    return {**os.environ, "LOG_LEVEL": "INFO", "PROMETHEUS_MULTIPROC_DIR": str(metrics), **(changes or {})}


@contextmanager
def running_workers(
    children: Mapping[str, int], *, variables: Mapping[str, str] | None = None
) -> Iterator[dict[str, Process]]:
    """Run beat and these workers of `processes.WORKERS`, each with its number of children."""
    environment = default_environment(variables)
    with folder() as root, ExitStack() as stack:
        running = {
            name: processes.worker(name, queues=name, concurrency=count, root=root, environment=environment)
            for name, count in children.items()
        }
        running["beat"] = processes.beat(root=root, environment=environment)
        for process in running.values():
            stack.callback(process.stop)
            process.start()
        for name, count in children.items():
            wait_for_children(running[name], count)
        yield running
        for process in running.values():
            process.send_stop_signal()


def wait_for_children(worker: Process, count: int) -> None:
    """Wait until a worker has forked its children, which it does after it connected to the broker."""
    wait_until(lambda: len(process_tree.members(worker.pid)) > count, limit=60)


@contextmanager
def serving(*, variables: Mapping[str, str] | None = None) -> Iterator[processes.Web]:
    with folder() as root:
        web = processes.Web(root, KeptSettings(root), default_environment(variables))
        web.start()
        try:
            yield web
        finally:
            web.stop()


@contextmanager
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir=Path(".local/bench")) as name:
        yield Path(name).resolve()


# ---- Costs -----------------------------------------------------------------------------------------------------------


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time so far of processes and all their descendants."""
    return sum(process_cpu_seconds(member) for pid in pids for member in {pid, *process_tree.members(pid)})


def process_cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / CLOCK_TICKS  # user and system time of the process, and of exited children


# Texts in the command lines of servers, by which their processes are found.
MARKS = {"Postgres": "--port={port} ", "SeaweedFS": "-s3.port={port} ", "Valkey": f"valkey-server {LOOPBACK}:{{port}}"}


def server_ports() -> dict[str, int]:
    """Return the port of each server."""
    env = settings.SLUICE
    urls = {
        "Postgres": env.database_url.get_secret_value(),
        "SeaweedFS": str(env.s3_endpoint_url),
        "Valkey": env.broker_url,
    }
    return {name: urlsplit(url).port or 0 for name, url in urls.items()}


def server_pids() -> dict[str, int]:
    """Return the process ID of each server.

    The lowest of several matches is used, because a new child process still has the command line of its parent.
    """
    marks = {name: MARKS[name].format(port=port) for name, port in server_ports().items()}
    return {name: min(pids_of(mark)) for name, mark in marks.items()}


def pids_of(words: str) -> list[int]:
    """Return the IDs of processes whose command line contains these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if words in command:
                found.append(int(entry.name))
    return found
