"""Sluice's own processes, each startable by itself: `worker("exports", …).start()`, `.kill()`, `.pid`.

`environment` is the whole environment of the process; `root` is the folder of the stack, whose `logs/` they write to.
"""

import http.client
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from config.dev.stack.identity import Identity
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process
from config.dev.stack.server import Server

# Queues by worker. Each has one of its own: a big bundle must not hold up chunks, and neither may hold up the reaper,
# whose promise counts in seconds. Receivers of webhooks may take theirs. So may OCR, and language models.
WORKERS = {
    "exports": "exports",
    "bundles": "bundles",
    "webhooks": "webhooks",
    "maintenance": "maintenance",
    "etl-ocr": "etl-ocr",
    "etl-postprocess": "etl-postprocess",
}

# Celery's --quiet: without its banner, which is not JSON as all other lines are.
QUIET = {"CELERY_QUIET": "true"}


def queues_of(worker: str, environment: Mapping[str, str]) -> str:
    """Return the queues of a worker by its name. The first word of those of document ETL is a setting."""
    name = environment.get("ETL_ARQ_QUEUE_NAME") or environment.get("ETL_QUEUE_NAME") or "etl"
    return re.sub(r"^etl-", f"{name}-", WORKERS[worker])


def python(name: str, *arguments: str, root: Path, environment: Mapping[str, str]) -> Process:
    """Return a process that runs Python, `python("migrate", "manage.py", "migrate", …)`."""
    return Process(
        name=name, command=[sys.executable, *arguments], log=root / "logs" / f"{name}.log", environment=environment
    )


class Web(Server):
    """The web process as a server: on a free port, and ready when it answers. `beside` must live meanwhile."""

    name: ClassVar[str] = "web"

    def __init__(
        self, root: Path, identity: Identity, environment: Mapping[str, str], *, beside: Sequence[Process] = ()
    ) -> None:
        super().__init__(root, identity, durable=True)
        self.variables, self.beside = environment, beside

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def describe(self) -> Process:
        return web(port=self.port, root=self.root, environment=self.variables)

    def is_ready(self) -> bool:
        for process in self.beside:
            process.check()
        return answers(self.port)


def web(*, port: int, root: Path, environment: Mapping[str, str]) -> Process:
    return python(
        "web", "-m", "uvicorn", "config.asgi:application", "--lifespan", "off", "--ws",
        "none", "--http", "config.connections:Connection",
        "--no-proxy-headers",
        "--no-access-log", "--host", LOOPBACK, "--port", str(port),
        # Open responses would hold up its end for as long as their clients like.
        "--timeout-graceful-shutdown", "5", root=root, environment=environment,
    )  # fmt: skip


def worker(name: str, *, queues: str, concurrency: int, root: Path, environment: Mapping[str, str]) -> Process:
    """Return a Celery worker with prefork children, shown in `ps` as `celery … worker`."""
    process = python(
        name, "-m", "celery", "-A", "config", "worker", "-Q", queues, "-c", str(concurrency), "-n", f"{name}@%h",
        # Talk among workers that nothing here uses; mingling alone would hold up every start by a second.
        "--without-gossip", "--without-mingle",
        # SIGTERM then means: finish what can be finished soon, and give the rest back.
        root=root, environment={**environment, **QUIET, "REMAP_SIGTERM": "SIGQUIT"},
    )  # fmt: skip
    # A chunk of the demo takes less than a second, and one that is killed runs again.
    process.grace_seconds = 5
    return process


def beat(*, root: Path, environment: Mapping[str, str]) -> Process:
    schedule = root / "beat" / "schedule"
    schedule.parent.mkdir(parents=True, exist_ok=True)
    return python(
        "beat",
        "-m",
        "celery",
        "-A",
        "config",
        "beat",
        "-s",
        str(schedule),
        root=root,
        environment={**environment, **QUIET},
    )


def answers(port: int, path: str = "/livez") -> bool:
    """Tell whether the web process answers this path with 200."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=15)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
