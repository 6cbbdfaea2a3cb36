"""Submission of batches: several documents under one rule. Files that are not accepted are left out and reported.

If the batch exceeds a quota or the queue is full, the whole batch is refused. For a client, it is easier to send a
smaller batch than to complete half of one.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog
from django.contrib.auth.models import User
from django.db import transaction

from config.platform.db import clock, identity
from config.platform.http import audit
from config.platform.http.idempotency import Idempotency
from config.platform.http.problems import BadInput, InputError, Problem, StorageUnavailable
from config.platform.observability import tracing
from etl.core import metrics
from etl.core.states import Stage
from etl.ingest.submission import IncomingDocument, uploads_of
from etl.ingest.uploads import StoredDocument
from etl.models import DocumentBatch, Task
from etl.models.task import printable
from etl.pipeline import budgets, dispatch, queue_limit, turns
from rules.library import catalog
from rules.library.content import RuleContent

log = structlog.get_logger(__name__)

THREADS = 4  # each needs the memory of one part of an upload
MAX_NAME = 300  # characters of a refused file's name, which may be a path


class NamedDocument(IncomingDocument, Protocol):
    @property
    def name(self) -> str: ...


class Candidate(NamedTuple):
    """A document of a request. `pointer`: its place in the request."""

    document: NamedDocument
    pointer: str
    label: str = ""  # shown instead of the name


class Outcome(NamedTuple):
    """The outcome of checking or storing a document. `problem`: the reason for a refusal."""

    candidate: Candidate
    stored: StoredDocument | None = None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    user: User
    rule: RuleContent
    name: str
    keep_days: int | None
    request_id: str
    idempotency: Idempotency | None


def submit(
    candidates: Callable[[], Sequence[Candidate]],
    *,
    user: User,
    name: str = "",
    rule_id: int | None,
    keep_days: int | None = None,
    request_id: str = "",
    idempotency: Idempotency | None = None,
) -> tuple[DocumentBatch, bool]:
    """Create a batch of documents and start it. Without `rule_id`, the default rule applies.

    Return the batch, and whether an earlier request with the same idempotency key created it. Raises BadInput (also if
    no document is accepted), NoDefaultRule, QuotaExceeded, QueueFull, KeyReused, InFlight and StorageUnavailable. After
    these errors, nothing is created or charged.
    """
    if idempotency and (batch := idempotency.find(DocumentBatch.objects.all(), user_id=user.pk)):
        return batch, True
    rule = catalog.resolve(user=user, rule_id=rule_id)
    budgets.require(user.pk, rule)
    request = BatchRequest(
        user=user, rule=rule, name=name, keep_days=keep_days, request_id=request_id, idempotency=idempotency
    )
    # Read the candidates only now: after an earlier request with the same key, inbox files may have been moved.
    found = candidates()
    stored, refused = check_and_store(found, user_id=user.pk)
    try:
        require_some(stored, refused)
        batch, tasks = create(request, stored, refused)
    except Problem:
        # Only after a Problem is it certain that no row exists. After any other error, the commit may have succeeded.
        drop(stored)
        raise
    if not tasks:
        drop(stored)
        return batch, True
    for task in tasks:
        metrics.count_task_status(task.status)
    log.info("batch_accepted", batch_id=batch.pk, documents=len(tasks), refused=len(refused))
    dispatch.begin_many(dict.fromkeys(tasks, Stage.OCR))
    return batch, False


def check_and_store(found: Sequence[Candidate], *, user_id: int) -> tuple[list[Outcome], list[Outcome]]:
    """Return the stored documents, and the refused ones. Raises the errors of `submit`."""
    # Check the limits before reading the documents. Some may be refused, so room for one document is enough.
    queue_limit.check(user_id=user_id, size=0, uploads=uploads_of(*(each.document for each in found)))
    with ThreadPoolExecutor(THREADS) as pool:
        checks = list(pool.map(check, found))
        accepted = [outcome.candidate for outcome in checks if outcome.problem is None]
        require_some(accepted, checks)
        queue_limit.check(user_id=user_id, **cost(accepted))  # before storing them
        stores = list(pool.map(partial(store, mark=identity.marker()), accepted))
    return [each for each in stores if each.stored], [each for each in (*checks, *stores) if each.problem]


def check(candidate: Candidate) -> Outcome:
    """Check a document. Runs in threads, so it must not use the database. Raises StorageUnavailable."""
    try:
        candidate.document.check()
    except StorageUnavailable:
        raise
    except Problem as problem:
        return Outcome(candidate, problem=problem)
    return Outcome(candidate)


def store(candidate: Candidate, *, mark: Mapping[str, str]) -> Outcome:
    """Store a document. Runs in threads, like `check`. If the storage fails, the caller drops the other documents."""
    try:
        return Outcome(candidate, stored=candidate.document.store(mark))
    except Problem as problem:
        return Outcome(candidate, problem=problem)


def drop(stored: Sequence[Outcome]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda outcome: outcome.stored and outcome.stored.drop(), stored))


def require_some(accepted: Sequence[Any], checks: Sequence[Outcome]) -> None:
    """Raise StorageUnavailable if the storage failed, and BadInput if every document is refused."""
    problems = [(outcome.candidate, outcome.problem) for outcome in checks if outcome.problem]
    for _, problem in problems:
        if isinstance(problem, StorageUnavailable):
            raise problem
    if not accepted:
        raise BadInput(*(error_of(candidate, problem) for candidate, problem in problems))


def cost(candidates: Sequence[Candidate]) -> dict[str, Any]:
    documents = [candidate.document for candidate in candidates]
    size = sum(document.size for document in documents)
    return {"size": size, "uploads": uploads_of(*documents), "count": len(documents)}


def create(
    request: BatchRequest, stored: Sequence[Outcome], refused: Sequence[Outcome]
) -> tuple[DocumentBatch, list[Task]]:
    """Return the new batch and its tasks. If an earlier request created the batch, return that batch and no tasks."""
    idempotency, user = request.idempotency, request.user
    with transaction.atomic():
        if idempotency and (batch := idempotency.claim(DocumentBatch.objects.all(), user_id=user.pk)):
            return batch, []
        queue_limit.enter(user_id=user.pk, **cost([outcome.candidate for outcome in stored]))
        batch = DocumentBatch.objects.create(
            user=user,
            rule_id=request.rule.rule_id,
            rule_version=request.rule.version,
            name=request.name,
            total=len(stored),
            refused=[{"filename": name_of(each.candidate), "code": code_of(each.problem)} for each in refused],
            request_id=request.request_id,
            **(idempotency.columns if idempotency else {}),
        )
        shared = {
            "user": user,
            "batch": batch,
            "rule_id": request.rule.rule_id,
            "rule_version": request.rule.version,
            "expires_at": clock.now() + timedelta(days=request.keep_days) if request.keep_days else None,
            "request_id": request.request_id,
            "traceparent": tracing.traceparent(),
        }
        files = [outcome.stored for outcome in stored if outcome.stored]
        earlier = Task.objects.newest_duplicates(user_id=user.pk, digests=(file.sha256 for file in files))
        ranked = enumerate(files, turns.next_rank(user.pk))
        rows = [
            {**shared, "rank": rank, **file.columns, "duplicate_of": earlier.get(file.sha256)} for rank, file in ranked
        ]
        audit.record_change(batch_id=batch.pk)
        tasks = Task.objects.accept_many(rows)
        mark_repeats(tasks)
        return batch, tasks


def mark_repeats(tasks: Sequence[Task]) -> None:
    """Set `duplicate_of` of documents that the batch contains several times, once their IDs are known."""
    newest: dict[str, int] = {}
    repeats = []
    for task in tasks:
        if task.sha256 in newest:
            task.duplicate_of = newest[task.sha256]
            repeats.append(task)
        if task.sha256:
            newest[task.sha256] = task.pk
    Task.objects.bulk_update(repeats, ["duplicate_of"])


# ---- Refusals -------------------------------------------------------------------------------------------------------
def name_of(candidate: Candidate) -> str:
    """Return the display name. For a file of an archive, it includes the folders."""
    return printable(candidate.label or candidate.document.name)[-MAX_NAME:] or "document"


def code_of(problem: Problem | None) -> str:
    if isinstance(problem, BadInput) and problem.errors:
        return problem.errors[0].code
    return problem.code if problem else ""


def error_of(candidate: Candidate, problem: Problem) -> InputError:
    detail = problem.errors[0].detail if isinstance(problem, BadInput) and problem.errors else problem.detail
    return InputError(pointer=candidate.pointer, code=code_of(problem), detail=f"{name_of(candidate)}: {detail}")
