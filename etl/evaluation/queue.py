"""Queue of samples to evaluate. Claims, renewals, and ends are protected by a fencing token.

A user's evaluations run in the order in which they were started. At most AT_ONCE samples of a user are processed at the
same time, so that evaluations leave workers for documents.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from etl.core.errors import Fenced
from etl.evaluation import scoring
from etl.evaluation.scoring import FieldScore
from etl.models import Evaluation, SampleRun
from etl.models.evaluation import OPEN, EvaluationStatus, SampleStatus

AT_ONCE = 2
DIGITS = 4  # decimal places of an accuracy
NO_LEASE: dict[str, Any] = {"token": None, "leased_until": None}


def lease() -> Any:
    return Now() + timedelta(seconds=settings.SLUICE.etl_lease_seconds)


def due() -> Q:
    """Return the condition for runs that can be claimed: waiting runs, and runs with an expired lease."""
    waiting = Q(status=SampleStatus.WAITING, available_at__lte=Now())
    return waiting | Q(status=SampleStatus.RUNNING, leased_until__lte=Now())


def claim(user_id: int) -> SampleRun | None:
    """Claim the next sample of the user's evaluations. Return None if there is none, or if AT_ONCE samples of the user
    are being processed.

    The row locks on the evaluations serialize the claims of a user.
    """
    with transaction.atomic():
        running = Evaluation.objects.select_for_update().filter(user_id=user_id, status=EvaluationStatus.RUNNING)
        runs = SampleRun.objects.filter(evaluation__in=[each.pk for each in running.order_by("pk")])
        if runs.filter(status=SampleStatus.RUNNING, leased_until__gt=Now()).count() >= AT_ONCE:
            return None
        run = runs.filter(due()).select_related("evaluation", "sample__task").order_by("evaluation", "pk").first()
        if run is None:
            return None
        run.status, run.token = SampleStatus.RUNNING, uuid4()
        run.attempts += 1
        SampleRun.objects.filter(pk=run.pk).update(
            status=run.status, token=run.token, attempts=run.attempts, leased_until=lease()
        )
    return run


def held(run: SampleRun) -> Any:
    return SampleRun.objects.filter(pk=run.pk, token=run.token)


def renew(run: SampleRun, usage: dict[str, int]) -> bool:
    """Renew the lease, and record the usage so far. Return whether the lease is still held."""
    return bool(held(run).update(leased_until=lease(), **usage))


def put_back(run: SampleRun, usage: dict[str, int], *, delay: float = 0, counts: bool = True) -> None:
    """Return a sample to the queue. `delay`: in seconds. `counts`: whether this attempt is counted. Raises Fenced."""
    later = Now() + timedelta(seconds=delay)
    attempts = run.attempts if counts else run.attempts - 1
    if not held(run).update(status=SampleStatus.WAITING, attempts=attempts, available_at=later, **NO_LEASE, **usage):
        raise Fenced


def end(run: SampleRun, status: SampleStatus, **values: Any) -> Evaluation:
    """End a sample and, if it was the last open one, its evaluation. Raises Fenced."""
    with locked_evaluation(run.evaluation_id) as evaluation:
        if evaluation.status != EvaluationStatus.RUNNING or not held(run).update(status=status, **NO_LEASE, **values):
            raise Fenced
    return evaluation


@contextmanager
def locked_evaluation(evaluation_id: int) -> Iterator[Evaluation]:
    """Lock an evaluation. When the block ends, complete it if it has no open samples. Raises Fenced."""
    with transaction.atomic():
        evaluation = Evaluation.objects.select_for_update().filter(pk=evaluation_id).first()
        if evaluation is None:
            raise Fenced
        yield evaluation
        if evaluation.status == EvaluationStatus.RUNNING and not evaluation.runs.filter(status__in=OPEN).exists():
            complete(evaluation)


def complete(evaluation: Evaluation) -> None:
    """Compute the accuracy, and end the evaluation.

    It fails if all samples were deleted, or if one failed with an operational error, which the rule did not cause.
    """
    runs = list(evaluation.runs.only("fields", "error"))
    # Workers of older releases, which can run during an upgrade, store `is_operational` as `retryable`.
    errors = [run.error for run in runs if run.error]
    operational = next((each for each in errors if each.get("is_operational", each.get("retryable"))), None)
    evaluation.ended_at = Now()
    if operational or not runs:
        evaluation.status, evaluation.error = EvaluationStatus.FAILED, operational or NO_SAMPLES
    else:
        fields = summed(run.fields for run in runs)
        evaluation.status = EvaluationStatus.COMPLETED
        evaluation.accuracy = rounded(scoring.total(fields))
        evaluation.fields = {name: rounded(fields[name]) for name in sorted(fields)}
    evaluation.save(update_fields=["status", "error", "accuracy", "fields", "ended_at"])


NO_SAMPLES = {"code": "no_samples", "detail": "All samples were deleted during the evaluation."}


def summed(runs: Any) -> dict[str, FieldScore]:
    fields: dict[str, FieldScore] = {}
    for run in runs:
        for name, (credit, values) in run.items():
            entry = fields.setdefault(name, FieldScore())
            entry.credit += credit
            entry.values += values
    return fields


def rounded(score: FieldScore) -> float:
    """Return the accuracy, rounded down so that only an entirely correct result has an accuracy of 1."""
    accuracy = min(score.accuracy, 1.0)
    return int(accuracy * 10**DIGITS + 1e-6) / 10**DIGITS  # type: ignore[no-any-return]


def cancel(evaluation_id: int) -> bool:
    """Cancel a running evaluation. Return False if it has ended.

    Its workers stop when they next renew their leases, and write no results.
    """
    with transaction.atomic():
        cancelled = Evaluation.objects.filter(pk=evaluation_id, status=EvaluationStatus.RUNNING).update(
            status=EvaluationStatus.CANCELLED, ended_at=Now()
        )
        if cancelled:
            SampleRun.objects.filter(evaluation=evaluation_id, status=SampleStatus.RUNNING).update(
                status=SampleStatus.WAITING, **NO_LEASE
            )
    return bool(cancelled)


def waiting_users() -> list[int]:
    """Return the IDs of users with samples that can be claimed."""
    runs = SampleRun.objects.filter(due(), evaluation__status=EvaluationStatus.RUNNING)
    return list(runs.order_by("evaluation__user").values_list("evaluation__user", flat=True).distinct())


def without_open_samples() -> list[int]:
    """Return the IDs of running evaluations whose remaining samples were deleted."""
    running = Evaluation.objects.filter(status=EvaluationStatus.RUNNING)
    return list(running.exclude(runs__status__in=OPEN).values_list("pk", flat=True))
