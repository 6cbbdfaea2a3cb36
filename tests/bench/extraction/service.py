"""A complete installation, and a client that creates rules, submits documents, and polls for results."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

from config.dev.stack import processes, servers
from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.process import StackError
from tests.bench.extraction.documents import Document
from tests.integration.openai_server import MODEL

API = "/api/v1/etl"
ENDED = ("completed", "failed", "cancelled")
WAIT_SECONDS = 50
LIMIT_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Service:
    """The API of an installation, for one user."""

    url: str
    token: str

    def request(self, method: str, path: str, **options: Any) -> Any:
        response = self.send(method, path, **options)
        if response.is_error:
            raise StackError(f"{method} {path}: {response.status_code} {response.text[:500]}")
        return response.json()

    def send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx2.request(method, f"{self.url}{API}{path}", headers=headers, timeout=WAIT_SECONDS + 30, **options)

    def make_rule(self, document: Document, *, strategy: str, instruction: str) -> int:
        body = {
            "name": f"{document.family} {strategy}",
            "json_schema": document.schema,
            "system_prompt": instruction,
            "postprocess_strategy": strategy,
        }
        return int(self.request("POST", "/rules", json=body)["rule_id"])

    def submit(self, document: Document, *, rule_id: int) -> int:
        files = {"file": (document.filename, document.content)}
        return int(self.request("POST", "/submit", files=files, data={"rule_id": str(rule_id)})["task_id"])

    def finished(self, task_id: int) -> dict[str, Any]:
        """Wait until a task has ended, and return it."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            task: dict[str, Any] = self.request("GET", f"/tasks/{task_id}", params={"wait": WAIT_SECONDS})
            if task["status"] in ENDED:
                return task
        raise StackError(f"Task {task_id} has not ended within {LIMIT_SECONDS} s.")


@contextmanager
def running(settings: Mapping[str, str]) -> Iterator[Service]:
    """Run servers, web, and workers in a separate folder."""
    home = Path(".local/bench")
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir=home.resolve())))
        started = stack.enter_context(servers.running(folder / "servers", durable=False))
        (folder / "metrics").mkdir()
        environment = os.environ | started.environment() | {
            "SECRET_KEY": "benchmarks-only-0123456789-0123456789-0123456789",
            "ALLOWED_HOSTS": "*",
            "LOG_LEVEL": "INFO",
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "PROMETHEUS_MULTIPROC_DIR": str(folder / "metrics"),
            "ETL_CACHE_DIR": str(folder / "documents"),
            "TMPDIR": str(folder),
            **settings,
        }  # fmt: skip
        manage("migrate", "--verbosity", "0", environment=environment)
        token = manage("issue_token", "bench", "--create", environment=environment).split()[-1]
        for name, queues, children in (("ocr", "etl-ocr,maintenance", 1), ("post", "etl-postprocess", 2)):
            worker = processes.worker(name, queues=queues, concurrency=children, root=folder, environment=environment)
            stack.callback(worker.stop)
            worker.start()
        web = processes.Web(folder, KeptSettings(folder), environment)
        stack.callback(web.stop)
        web.start()
        yield Service(web.url, token)


def model(url: str) -> dict[str, str]:
    """Return the settings for a model server."""
    return {"ETL_LLM_BASE_URL": url, "ETL_LLM_MODEL": MODEL, "NO_PROXY": "127.0.0.1"}


def manage(*arguments: str, environment: dict[str, str]) -> str:
    command = [sys.executable, "manage.py", *arguments]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise StackError(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
    return done.stdout
