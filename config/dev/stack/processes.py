"""Sluice's own processes, which can be started separately: `worker("exports", …).start()`.

`environment` is the complete environment of the process. `root` is the folder of the stack, with the logs in `logs/`.
"""

import http.client
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process
from config.dev.stack.server import LocalServer

# Each queue has its own worker: large bundles must not delay chunks, and neither must delay the reaper. Webhook
# receivers, OCR, and language models can be slow.
WORKERS = ("exports", "bundles", "webhooks", "maintenance", "etl-ocr", "etl-postprocess")

# Celery's --quiet: omit the banner, the only output that is not JSON.
QUIET = {"CELERY_QUIET": "true"}


def queue_of(worker: str, environment: Mapping[str, str]) -> str:
    """Return the queue of a worker, which has its name. The prefix of the document queues is a setting."""
    name = environment.get("ETL_ARQ_QUEUE_NAME") or environment.get("ETL_QUEUE_NAME") or "etl"
    return re.sub(r"^etl-", f"{name}-", worker)


def python(name: str, *arguments: str, root: Path, environment: Mapping[str, str]) -> Process:
    """Return a Python process, such as `python("migrate", "manage.py", "migrate", …)`."""
    return Process(
        name=name, command=[sys.executable, *arguments], log=root / "logs" / f"{name}.log", environment=environment
    )


class Web(LocalServer):
    """The web process on a free port, ready when it responds. The processes in `beside` must keep running meanwhile."""

    name: ClassVar[str] = "web"

    def __init__(
        self, root: Path, kept: KeptSettings, environment: Mapping[str, str], *, beside: Sequence[Process] = ()
    ) -> None:
        super().__init__(root, kept, durable=True)
        self.variables, self.beside = environment, beside

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def new_process(self) -> Process:
        return web(port=self.port, root=self.root, environment=self.variables)

    def is_ready(self) -> bool:
        for process in self.beside:
            process.check()
        return responds(self.port)


def web(*, port: int, root: Path, environment: Mapping[str, str]) -> Process:
    return python(
        "web", "-m", "uvicorn", "config.asgi:application", "--lifespan", "off", "--ws", "none",
        "--http", "config.connections:Connection", "--no-proxy-headers", "--no-access-log",
        "--host", LOOPBACK, "--port", str(port),
        # Without a timeout, open responses would delay the shutdown indefinitely.
        "--timeout-graceful-shutdown", "5", root=root, environment=environment,
    )  # fmt: skip


def worker(name: str, *, queues: str, concurrency: int, root: Path, environment: Mapping[str, str]) -> Process:
    """Return a Celery worker with prefork children, shown in `ps` as `celery … worker`."""
    process = python(
        name, "-m", "celery", "-A", "config", "worker", "-Q", queues, "-c", str(concurrency), "-n", f"{name}@%h",
        # Communication between workers is not needed, and mingling delays each start by a second.
        "--without-gossip", "--without-mingle",
        # SIGTERM then starts the soft shutdown: finish short work, release the rest.
        root=root, environment={**environment, **QUIET, "REMAP_SIGTERM": "SIGQUIT"},
    )  # fmt: skip
    # A chunk of the demo takes less than a second, and a killed one runs again.
    process.grace_seconds = 5
    return process


def beat(*, root: Path, environment: Mapping[str, str]) -> Process:
    schedule = root / "beat" / "schedule"
    schedule.parent.mkdir(parents=True, exist_ok=True)
    command = ("-m", "celery", "-A", "config", "beat", "-s", str(schedule))
    return python("beat", *command, root=root, environment={**environment, **QUIET})


def responds(port: int, path: str = "/livez") -> bool:
    """Return whether the server on this port responds to the path with 200."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=15)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
