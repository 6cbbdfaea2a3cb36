"""The queue of samples to evaluate: claim, renew, and end, each under a fencing token.

A user's evaluations take turns in the order of their start, and at most AT_ONCE samples of a user are processed at a
time, so that an evaluation leaves workers for documents.
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
DIGITS = 4  # of an accuracy
FREE: dict[str, Any] = {"token": None, "leased_until": None}


def lease() -> Any:
    return Now() + timedelta(seconds=settings.SLUICE.etl_lease_seconds)


def due() -> Q:
    """Return the runs that may be claimed: those that wait, and those whose worker was lost."""
    waiting = Q(status=SampleStatus.WAITING, available_at__lte=Now())
    return waiting | Q(status=SampleStatus.RUNNING, leased_until__lte=Now())


def claim(user_id: int) -> SampleRun | None:
    """Claim the next sample of the user's evaluations; None if there is none, or enough are being processed.

    The locks of the evaluations serialize the claims of one user.
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
    """Return a sample to the queue. `counts`: whether the attempt counts. Raises Fenced."""
    later = Now() + timedelta(seconds=delay)
    attempts = run.attempts if counts else run.attempts - 1
    if not held(run).update(status=SampleStatus.WAITING, attempts=attempts, available_at=later, **FREE, **usage):
        raise Fenced


def end(run: SampleRun, status: SampleStatus, **values: Any) -> Evaluation:
    """Write the end of a sample, and that of its evaluation if it is the last one. Raises Fenced."""
    with ending(run.evaluation_id) as evaluation:
        if evaluation.status != EvaluationStatus.RUNNING or not held(run).update(status=status, **FREE, **values):
            raise Fenced
    return evaluation


@contextmanager
def ending(evaluation_id: int) -> Iterator[Evaluation]:
    """Lock an evaluation, and complete it afterwards if none of its samples is left."""
    with transaction.atomic():
        evaluation = Evaluation.objects.select_for_update().filter(pk=evaluation_id).first()
        if evaluation is None:
            raise Fenced
        yield evaluation
        if evaluation.status == EvaluationStatus.RUNNING and not evaluation.runs.filter(status__in=OPEN).exists():
            complete(evaluation)


def complete(evaluation: Evaluation) -> None:
    """Compute the accuracy. The evaluation fails if no samples are left, or if one ended with an operational error,
    which is not the rule's fault."""
    runs = list(evaluation.runs.only("fields", "error"))
    # During an upgrade, older workers store it as `retryable`.
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


NO_SAMPLES = {"code": "no_samples", "detail": "The samples were deleted meanwhile."}


def summed(runs: Any) -> dict[str, FieldScore]:
    fields: dict[str, FieldScore] = {}
    for run in runs:
        for name, (credit, values) in run.items():
            entry = fields.setdefault(name, FieldScore())
            entry.credit += credit
            entry.values += values
    return fields


def rounded(score: FieldScore) -> float:
    """Round down, so that 1 means that everything is right."""
    accuracy = min(score.accuracy, 1.0)
    return int(accuracy * 10**DIGITS + 1e-6) / 10**DIGITS  # type: ignore[no-any-return]


def cancel(evaluation_id: int) -> bool:
    """Cancel a running evaluation. Its workers stop when they renew their leases, and write nothing."""
    with transaction.atomic():
        cancelled = Evaluation.objects.filter(pk=evaluation_id, status=EvaluationStatus.RUNNING).update(
            status=EvaluationStatus.CANCELLED, ended_at=Now()
        )
        if cancelled:
            SampleRun.objects.filter(evaluation=evaluation_id, status=SampleStatus.RUNNING).update(
                status=SampleStatus.WAITING, **FREE
            )
    return bool(cancelled)


def waiting_users() -> list[int]:
    """Return the users with samples that may be claimed."""
    runs = SampleRun.objects.filter(due(), evaluation__status=EvaluationStatus.RUNNING)
    return list(runs.order_by("evaluation__user").values_list("evaluation__user", flat=True).distinct())


def left_over() -> list[int]:
    """Return the running evaluations without a sample to process: their samples were deleted."""
    running = Evaluation.objects.filter(status=EvaluationStatus.RUNNING)
    return list(running.exclude(runs__status__in=OPEN).values_list("pk", flat=True))
