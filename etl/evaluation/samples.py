"""Samples of a rule: documents with the data that the rule should extract."""

from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from config.platform import exact_json
from config.platform.http import audit, parsers
from config.platform.http.problems import BadInput, InputError, NotFound, Problem, require_first
from etl.core.states import Status
from etl.models import Sample, Task
from etl.models.evaluation import MAX_EXPECTED_BYTES
from rules.library.access import NoSuchRule
from rules.models import Rule
from rules.schema import json_schema

POINTER = "/expected"
MAX_SAMPLES = 200
CODE = "schema_validation"


class NoSuchSample(NotFound):
    detail = "Sample not found."


class TooManySamples(Problem):
    status = 409
    code = "too_many_samples"
    detail = f"The rule has {MAX_SAMPLES} samples, which is the limit. Delete one first."


class NoDataYet(Problem):
    status = 409
    code = "not_ready"
    detail = "This document has no extracted data. Choose a completed document of a rule that extracts data."


def owned_task(task_id: int, *, user: User) -> Task:
    """Return a document of the user. Raises BadInput at `/task_id`."""
    return require_first(Task.objects.filter(pk=task_id, user=user), unknown_task())


def unknown_task() -> BadInput:
    detail = "Task not found. Only your own documents can be samples."
    return BadInput(InputError(pointer="/task_id", code="unknown_task", detail=detail))


def check(rule: Rule, expected: Any) -> None:
    """Check the expected data against the schema of the rule's current version. Raises BadInput with pointers."""
    if expected is None:
        raise BadInput(InputError(pointer=POINTER, code="null", detail="Must not be null."))
    size = len(exact_json.dumps(expected))
    if size > MAX_EXPECTED_BYTES:
        detail = f"Has {size:,} bytes as compact JSON; the limit is {MAX_EXPECTED_BYTES:,}."
        raise BadInput(InputError(pointer=POINTER, code="too_large", detail=detail))
    if rule.json_schema is None:
        return
    found = json_schema.errors(rule.json_schema, expected)
    if found:
        raise BadInput(
            *(InputError(pointer=POINTER + pointer, code=CODE, detail=message) for pointer, message in found)
        )


def parse(text: str) -> Any:
    """Parse the expected data in a form field, like a JSON body. Raises BadInput."""
    try:
        return parsers.load(text.encode(errors="replace"), is_exact=True)
    except BadInput as problem:
        errors = [
            InputError(pointer=POINTER + each.pointer, code=each.code, detail=each.detail) for each in problem.errors
        ]
        raise BadInput(*errors) from None


def add(rules: QuerySet[Rule], rule_id: int, task: Task, expected: Any) -> tuple[Sample, bool]:
    """Add a document to the samples of one of `rules`, or replace the expected data of an existing sample.

    Return the sample, and whether it is new. Raises BadInput, NoSuchRule, and TooManySamples.
    """
    with transaction.atomic():
        # The lock serializes additions.
        rule = require_first(rules.select_for_update().filter(pk=rule_id), NoSuchRule)
        check(rule, expected)
        # The lock prevents the task from being deleted before the commit.
        if not Task.objects.select_for_update(no_key=True).filter(pk=task.pk).values_list("pk"):
            raise unknown_task()
        audit.record_change(task_id=task.pk)
        if Sample.objects.filter(rule=rule, task=task).update(expected=expected):
            return Sample.objects.get(rule=rule, task=task), False
        if Sample.objects.filter(rule=rule).count() >= MAX_SAMPLES:
            raise TooManySamples
        return Sample.objects.create(rule=rule, task=task, expected=expected), True


def result_of(task: Task) -> Any:
    """Return the extracted data of a document. Raises NoDataYet."""
    result = task.current_result or {}
    if task.status != Status.COMPLETED or "data" not in result:
        raise NoDataYet
    return result["data"]


def delete(rule_id: int, sample_id: int) -> None:
    """Delete a sample and its results in evaluations. Raises NoSuchSample.

    The accuracies of completed evaluations stay the same.
    """
    with transaction.atomic():
        # The lock prevents an evaluation from starting with the sample.
        require_first(Sample.objects.select_for_update().filter(rule=rule_id, pk=sample_id), NoSuchSample).delete()
