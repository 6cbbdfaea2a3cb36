"""Submission of documents: resolve the rule, store the document, insert the row, then start the task."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol

import structlog
from django.contrib.auth.models import User
from django.db import transaction

from config.platform.db import clock, identity
from config.platform.http import audit
from config.platform.http.idempotency import Idempotency
from config.platform.http.problems import Problem
from config.platform.observability import tracing
from etl.core import metrics
from etl.core.states import Stage
from etl.ingest.uploads import StoredDocument
from etl.models import Task
from etl.pipeline import budgets, dispatch, queue_limit, turns
from rules.library import catalog
from rules.library.content import RuleContent

log = structlog.get_logger(__name__)

TASKS = Task.objects.without_results()


class IncomingDocument(Protocol):
    """A submitted document. `upload`: the key of an earlier upload, or "".

    `check` and `store` must not use the database, because batches call them in threads. `store` adds `mark`, the mark
    of this service, to the object's metadata.
    """

    @property
    def size(self) -> int: ...

    @property
    def upload(self) -> str: ...

    def check(self) -> None: ...

    def store(self, mark: Mapping[str, str]) -> StoredDocument: ...


def submit(
    document: IncomingDocument,
    *,
    user: User,
    rule_id: int | None,
    keep_days: int | None = None,
    request_id: str = "",
    idempotency: Idempotency | None = None,
) -> tuple[Task, bool]:
    """Create a task for a document and start it. Without `rule_id`, the default rule applies.

    Return the task, and whether an earlier request with the same idempotency key created it. Raises BadInput,
    NoDefaultRule, the problems of `etl.ingest.acceptance`, QuotaExceeded, QueueFull, KeyReused, InFlight and
    StorageUnavailable. After these errors, nothing is created or charged. Once the row is committed, the task cannot be
    lost: if Redis or the broker is unavailable, recovery starts it.
    """
    if idempotency and (task := idempotency.find(TASKS, user_id=user.pk)):
        return task, True
    rule = catalog.resolve(user=user, rule_id=rule_id)
    budgets.require(user.pk, rule)
    document.check()
    queue_limit.check(user_id=user.pk, size=document.size, uploads=uploads_of(document))  # before storing it
    stored = document.store(identity.marker())
    try:
        task, replayed = create_task(
            stored, idempotency, user=user, rule=rule, keep_days=keep_days, request_id=request_id,
            uploads=uploads_of(document),
        )  # fmt: skip
    except Problem:
        # Only after a Problem is it certain that no row exists. After any other error, the commit may have succeeded.
        stored.drop()
        raise
    if replayed:
        stored.drop()
        return task, True
    metrics.count_task_status(task.status)
    log.info("task_accepted", etl_task_id=task.pk, kind=task.kind, size=task.size)
    dispatch.begin(task, stage=Stage.OCR)
    return task, False


def uploads_of(*documents: IncomingDocument) -> list[str]:
    return [document.upload for document in documents if document.upload]


def create_task(
    stored: StoredDocument,
    idempotency: Idempotency | None,
    *,
    user: User,
    rule: RuleContent,
    keep_days: int | None,
    request_id: str,
    uploads: list[str],
) -> tuple[Task, bool]:
    with transaction.atomic():
        if idempotency and (task := idempotency.claim(TASKS, user_id=user.pk)):
            return task, True
        queue_limit.enter(user_id=user.pk, size=stored.size, uploads=uploads)
        task = Task.objects.accept(
            user=user,
            rank=turns.next_rank(user.pk),
            rule_id=rule.rule_id,
            rule_version=rule.version,
            **stored.columns,
            duplicate_of=Task.objects.newest_duplicate(user_id=user.pk, sha256=stored.sha256),
            expires_at=clock.now() + timedelta(days=keep_days) if keep_days else None,
            request_id=request_id,
            traceparent=tracing.traceparent(),
            **(idempotency.columns if idempotency else {}),
        )
        audit.record_change(task_id=task.pk)
        return task, False
