"""Tasks and rules for tests, created as in the application."""

from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User

from config.platform import storage
from etl import runstate
from etl.core.states import Stage
from etl.models import DocumentBatch, Task
from etl.pipeline import artifacts, dispatch, turns
from rules.library import editing
from rules.models import Rule


def make_rule(owner: User | None = None, *, mode: str = "skip", name: str = "plain", **changes: Any) -> Rule:
    fields = {"name": name, "postprocess_mode": mode, "json_schema": {"type": "object"} if mode == "llm" else None}
    rule = Rule(owner=owner, **(fields | changes))
    rule.save()
    editing.save_version(rule)
    return rule


def make_row(
    user: User, text: str = "Hello.", *, rule: Rule | None = None, content: bytes | None = None, **changes: Any
) -> Task:
    """Store a document, and create its row, whose runs are numbered from 1. `content`: replaces `text`."""
    rule = rule or make_rule(user)
    content = text.encode() if content is None else content
    key = f"{artifacts.DOCUMENTS}{uuid4()}.txt"
    storage.put(key, content, content_type="text/plain")
    fields: dict[str, Any] = {"filename": "hello.txt", "kind": "txt", "size": len(content)}
    fields |= {"rule_version": rule.version, "rank": turns.next_rank(user.pk), "uuid": f"{0:07}{str(uuid4())[7:]}"}
    return Task.objects.create(user=user, rule=rule, document_key=key, **(fields | changes))


def make_task(user: User, text: str = "Hello.", *, rule: Rule | None = None, **changes: Any) -> Task:
    """Submit a document: create its row and its run-state, and send its message."""
    task = make_row(user, text, rule=rule, **changes)
    runstate.create(task, stage=Stage.OCR)
    dispatch.wake(task_id=task.pk, stage=Stage.OCR)
    return task


def make_batch(
    user: User, number: int = 1, *, rule: Rule | None = None, **changes: Any
) -> tuple[DocumentBatch, list[Task]]:
    """Submit documents in a batch. `changes`: fields of the batch."""
    rule = rule or make_rule(user)
    fields: dict[str, Any] = {"rule": rule, "rule_version": rule.version, "total": number}
    batch = DocumentBatch.objects.create(user=user, **(fields | changes))
    return batch, [make_task(user, rule=rule, batch=batch, filename=f"{n}.txt") for n in range(number)]
