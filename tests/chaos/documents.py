"""Shared steps of the document tests: submission over HTTP, and reading of the outcome."""

import os
from typing import Any

from config.dev.stack.process import Process
from config.platform import storage
from etl import runstate
from etl.core.states import ENDED
from etl.models import Task
from rules.models import Rule
from tests import scripted_stages
from tests.chaos.site import QUEUES, Site
from tests.integration.etl_factories import make_rule
from tests.waiting import wait_until

BOTH_QUEUES = "etl-ocr,etl-postprocess"
ALL = f"{QUEUES},{BOTH_QUEUES}"
# The real provider and processors instead of the scripted ones.
REAL = {"DJANGO_SETTINGS_MODULE": "tests.chaos.real_settings", "ETL_OCR_PROVIDER": "local"}


def send(site: Site, content: str | bytes, *, name: str = "hello.txt", rule: Any = None) -> Any:
    """Submit a document, and return the response."""
    data = content.encode() if isinstance(content, str) else content
    fields = {"rule_id": str(rule.pk)} if rule else {}
    return site.client.post("/api/v1/etl/submit", files={"file": (name, data, "text/plain")}, data=fields)


def submit(site: Site, content: str | bytes, *, name: str = "hello.txt", rule: Any = None) -> Task:
    response = send(site, content, name=name, rule=rule)
    assert response.status_code == 202, response.text
    return Task.objects.get(pk=response.json()["task_id"])


def scripted_rule(site: Site) -> Rule:
    """Return a rule with a unique name, under which the scripted processor records its calls."""
    return make_rule(site.owner, mode="llm", name=f"rule-{os.urandom(4).hex()}")


def status(task: Task) -> str:
    return Task.objects.values_list("status", flat=True).get(pk=task.pk)


def settle(*tasks: Task, limit: float = 60) -> None:
    """Wait until all tasks have ended."""
    wait_until(lambda: all(status(task) in ENDED for task in tasks), limit=limit, every=0.05)


def code_of(task: Task) -> tuple[str, str]:
    """Return a task's error code, or its status if there is none, and its last stage."""
    row = Task.objects.get(pk=task.pk)
    return (row.error["code"] if row.error else row.status), row.phase


def runstate_of(task: Task) -> str:
    state = runstate.read(task.pk)
    return state.status if state else ""


def ocr_calls(task: Task) -> int:
    return len(scripted_stages.calls(f"ocr-{task.pk}"))


def post_calls(rule: Any) -> int:
    return len(scripted_stages.calls(f"post-{rule.name}"))


def attempts(task: Task) -> tuple[int, int]:
    metadata = Task.objects.values_list("metadata", flat=True).get(pk=task.pk)
    return metadata["attempts"]["ocr"], metadata["attempts"]["postprocess"]


def markdown_of(task: Task) -> str:
    """Return the Markdown artifact of a completed task."""
    result = Task.objects.get(pk=task.pk).result
    assert result
    return b"".join(storage.read(result["markdown_s3_key"])).decode()


def consumes(worker: Process, queue: str) -> bool:
    queues = worker.command[list(worker.command).index("-Q") + 1]
    return worker.alive and queue in queues.split(",")
