"""Evaluations of rules: start, cancel, read, and compare."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, Max, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from config.platform.db.locks import lock_user
from config.platform.http import audit
from config.platform.http.problems import BadInput, InputError, NotFound, Problem, require_first
from etl.core.errors import LlmForbidden
from etl.core.stage_context import USAGE_FIELDS
from etl.evaluation import dispatch, queue, scoring
from etl.models import Evaluation, Sample, SampleRun
from etl.models.evaluation import OPEN, EvaluationStatus, SampleStatus
from etl.pipeline import budgets, engines, quotas
from rules.library import catalog
from rules.library.access import NoSuchRule
from rules.models import Rule

log = structlog.get_logger(__name__)

MAX_RUNNING = 10  # evaluations of a user


class NoSuchEvaluation(NotFound):
    detail = "Evaluation not found."


class NoSamples(Problem):
    status = 409
    code = "no_samples"
    detail = "The rule has no samples. Add documents with the expected data first."


class NothingToEvaluate(Problem):
    status = 409
    code = "no_data"
    detail = "This version of the rule extracts no data, so there is nothing to compare."


class AlreadyRunning(Problem):
    status = 409
    code = "evaluation_running"
    detail = "An evaluation of this version is running. Wait until it ends, or cancel it."


class TooManyEvaluations(Problem):
    status = 429
    code = "too_many_evaluations"
    retry_after = 60
    detail = f"You have {MAX_RUNNING} running evaluations, which is the limit. Wait until one ends, or cancel one."


class NotRunning(Problem):
    status = 409
    code = "not_running"
    detail = "The evaluation has ended."


# ---- Start and end --------------------------------------------------------------------------------------------------
def start(rules: QuerySet[Rule], rule_id: int, *, version: int | None, user: User) -> Evaluation:
    """Start an evaluation of a version of one of `rules` on all its samples. Default: the current version.

    Raises BadInput, NoSuchRule, NoSamples, NothingToEvaluate, AlreadyRunning, TooManyEvaluations, and QuotaExceeded.
    """
    with transaction.atomic():
        lock_user(user.pk)
        # The lock of the rule makes the numbers of its evaluations unique.
        rule = require_first(rules.select_for_update().filter(pk=rule_id), NoSuchRule)
        number = version or rule.version
        asks_model = check_version(rule, number)
        locked = Sample.objects.select_for_update(no_key=True).filter(rule=rule)  # prevents deletions
        samples = list(locked.order_by("pk").values_list("pk", flat=True))
        if not samples:
            raise NoSamples
        check_running(rule, number, user=user)
        if asks_model:
            budgets.require(user.pk, catalog.content(rule_id=rule.pk, version=number))
            quotas.charge_tests(user.pk, len(samples))
        last = Evaluation.objects.filter(rule=rule).aggregate(last=Max("number"))["last"] or 0
        evaluation = Evaluation.objects.create(
            rule=rule, number=last + 1, version=number, user=user, samples=len(samples)
        )
        SampleRun.objects.bulk_create([SampleRun(evaluation=evaluation, sample_id=pk) for pk in samples])
        audit.record_change(number=evaluation.number)
        for _ in range(min(len(samples), queue.AT_ONCE)):
            transaction.on_commit(partial(dispatch.wake, user.pk))
    log.info("evaluation_started", evaluation_id=evaluation.pk, rule_id=rule_id, version=number, samples=len(samples))
    return evaluation


def check_version(rule: Rule, number: int) -> bool:
    """Return whether the version calls a language model. Raises BadInput and NothingToEvaluate."""
    version = rule.versions.filter(version=number).first()
    if version is None:
        detail = f"The rule has no such version. The current version is {rule.version}."
        raise BadInput(InputError(pointer="/version", code="unknown_version", detail=detail))
    try:
        processor = engines.processor(version.postprocess_mode)
    except LlmForbidden:
        raise NothingToEvaluate(f"The mode {version.postprocess_mode[:32]} is not configured.") from None
    if not processor.gives_data:
        raise NothingToEvaluate
    return bool(processor.asks_model)


def check_running(rule: Rule, version: int, *, user: User) -> None:
    running = Evaluation.objects.filter(user=user, status=EvaluationStatus.RUNNING)
    if running.filter(rule=rule, version=version).exists():
        raise AlreadyRunning
    if running.count() >= MAX_RUNNING:
        raise TooManyEvaluations


def cancel(evaluation: Evaluation) -> None:
    """Cancel a running evaluation. Raises NotRunning."""
    if not queue.cancel(evaluation.pk):
        raise NotRunning
    log.info("evaluation_cancelled", evaluation_id=evaluation.pk)


# ---- Reading --------------------------------------------------------------------------------------------------------
def of_rule(rule_id: int) -> QuerySet[Any]:
    """Return the evaluations of a rule with their usage and progress."""
    found: QuerySet[Any] = Evaluation.objects.filter(rule=rule_id).annotate(
        ended=Count("runs", filter=~Q(runs__status__in=OPEN)),
        failed=Count("runs", filter=Q(runs__status=SampleStatus.FAILED)),
        duration_ms=Coalesce(Sum("runs__duration_ms"), 0),
        **{name: Coalesce(Sum(f"runs__{name}"), 0) for name in USAGE_FIELDS},
    )
    return found


def find(rule_id: int, number: int) -> Any:
    """Return an evaluation with its usage and progress. Raises NoSuchEvaluation."""
    return require_first(of_rule(rule_id).filter(number=number), NoSuchEvaluation)


# ---- Comparison -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyPair:
    """Two accuracies to compare. None: there is no accuracy."""

    a: float | None
    b: float | None

    @property
    def change(self) -> float | None:
        return None if self.a is None or self.b is None else round(self.b - self.a, queue.DIGITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPair(AccuracyPair):
    pointer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePair(AccuracyPair):
    """A sample in two evaluations. `misses_a`, `misses_b`: the values that differ from the expected data."""

    sample: Sample
    misses_a: list[dict[str, Any]]
    misses_b: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two evaluations of a rule side by side.

    `is_same_set`: whether both accuracies cover exactly these samples. If not, an evaluation has samples that the other
    one does not have, or that were deleted since.
    """

    a: Any
    b: Any
    fields: list[FieldPair]
    samples: list[SamplePair]

    @property
    def is_same_set(self) -> bool:
        is_complete = len(self.samples) == self.a.samples == self.b.samples
        return is_complete and all(each.a is not None and each.b is not None for each in self.samples)

    @property
    def change(self) -> float | None:
        return AccuracyPair(a=self.a.accuracy, b=self.b.accuracy).change


def compare(rule_id: int, a: int, b: int) -> Comparison:
    """Compare two evaluations of a rule. Raises NoSuchEvaluation."""
    one, other = find(rule_id, a), find(rule_id, b)
    pointers = sorted({*one.fields, *other.fields})
    fields = [FieldPair(pointer=name, a=one.fields.get(name), b=other.fields.get(name)) for name in pointers]
    return Comparison(a=one, b=other, fields=fields, samples=list(sample_pairs(one, other)))


def sample_pairs(one: Evaluation, other: Evaluation) -> Iterator[SamplePair]:
    mine, theirs = ({run.sample_id: run for run in each.runs.all()} for each in (one, other))
    samples = Sample.objects.with_task().defer("expected").in_bulk({*mine, *theirs})
    for sample_id, sample in sorted(samples.items()):
        runs = mine.get(sample_id), theirs.get(sample_id)
        a, b = (accuracy_of(run) for run in runs)
        misses_a, misses_b = ((run.misses or []) if run else [] for run in runs)
        yield SamplePair(sample=sample, a=a, b=b, misses_a=misses_a, misses_b=misses_b)


def accuracy_of(run: SampleRun | None) -> float | None:
    """Return the accuracy of a sample, or None if it was not evaluated."""
    if run is None or run.status in OPEN:
        return None
    return queue.rounded(scoring.total(queue.summed([run.fields])))


# ---- Versions -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAccuracy:
    """The newest completed evaluation of a version, and of the evaluated version before it."""

    evaluation: Evaluation
    before: Evaluation | None

    @property
    def change(self) -> float | None:
        return AccuracyPair(a=self.before.accuracy, b=self.evaluation.accuracy).change if self.before else None


def by_version(rule_id: int) -> list[VersionAccuracy]:
    """Return the accuracies of all evaluated versions, newest first."""
    completed = Evaluation.objects.filter(rule=rule_id, status=EvaluationStatus.COMPLETED)
    newest = list(completed.order_by("version", "-number").distinct("version").defer("fields"))
    found = [VersionAccuracy(evaluation=each, before=before) for each, before in zip(newest, [None, *newest])]  # noqa: B905 - the second list is one longer
    return found[::-1]
