"""From a request to a task that is safe: rule, document, row; then the run-state, and a message that wakes a worker."""

from typing import Any, Protocol

import structlog
from django.contrib.auth.models import User
from django.db import transaction

from config.platform.http.idempotency import Idempotency, KeyReused
from config.platform.http.problems import Problem
from config.platform.observability import tracing
from etl.core import metrics
from etl.core.states import Phase
from etl.ingest.uploads import Stored
from etl.models import Task
from etl.pipeline import dispatch, queue_limit
from rules.library import catalog
from rules.library.content import RuleContent

log = structlog.get_logger(__name__)


class Document(Protocol):
    """A document on its way in."""

    def check(self) -> None: ...

    def store(self) -> Stored: ...


class AlreadyMade(Exception):
    """A task was made under this Idempotency-Key while this request was read."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task


def submit(
    document: Document,
    *,
    user: User,
    rule_id: int | None,
    request_id: str = "",
    idempotency: Idempotency | None = None,
) -> Task:
    """Make a task for a document, and send it on its way. Without `rule_id` the global rule is meant.

    Raise BadInput, the problems of `etl.ingest.acceptance` for what is refused, QueueFull, InFlight, and AlreadyMade.
    Then nothing is made. The row is what counts: where Redis or the broker is away, recovery does the rest.
    """
    rule = catalog.resolve(user=user, rule_id=rule_id)
    document.check()
    queue_limit.check()  # a full queue is no reason to store the document first
    stored = document.store()
    try:
        task = _insert(stored, idempotency, user=user, rule=rule, request_id=request_id)
    except (Problem, AlreadyMade):
        # Of these alone it is known that nothing was made. A commit whose answer was lost may have made the row.
        stored.drop()
        raise
    metrics.task_moved(task.status)
    log.info("task_accepted", etl_task_id=task.pk, kind=task.kind, size=task.size)
    dispatch.begin(task, phase=Phase.OCR)
    return task


def find(user_id: int, idempotency: Idempotency) -> Task | None:
    """Return the task that this user has made under this key. Raises KeyReused when that was another request."""
    task = Task.objects.filter(user_id=user_id, idempotency_key=idempotency.key).defer("result").first()
    if task and task.fingerprint != idempotency.fingerprint:
        raise KeyReused
    return task


def _insert(stored: Stored, idempotency: Idempotency | None, *, user: User, rule: RuleContent, request_id: str) -> Task:
    known: dict[str, Any] = {}
    with transaction.atomic():
        if idempotency:
            idempotency.claim(scope=f"etl/{user.pk}")
            if made := find(user.pk, idempotency):
                raise AlreadyMade(made)
            known = {"idempotency_key": idempotency.key, "fingerprint": idempotency.fingerprint}
        queue_limit.enter()
        return Task.objects.create(
            user=user,
            rule_id=rule.rule_id,
            rule_version=rule.version,
            filename=stored.filename,
            kind=stored.kind,
            size=stored.size,
            document_key=stored.key,
            request_id=request_id,
            traceparent=tracing.parent(),
            **known,
        )
