"""API views of samples and evaluations of rules. They are in this app because `rules` must not import `etl`.

Only the owner of a rule can use them, because the expected data is content of documents.
"""

from operator import attrgetter
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest
from drf_spectacular.utils import OpenApiResponse, extend_schema_view
from rest_framework import generics
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from config.platform.db.text_size import text_size
from config.platform.http.audit import CHANGES, OPENS_DATA
from config.platform.http.auth import user_of
from config.platform.http.idempotency import Idempotency, InFlight, KeyReused
from config.platform.http.openapi.responses import problems
from config.platform.http.paging import refusal, whole_number
from config.platform.http.parsers import ExactJSONParser
from config.platform.http.problems import BadInput, BodyTooLarge, StorageUnavailable
from config.platform.http.request_context import request_id
from config.platform.http.scopes import RULES, require_scope
from config.platform.http.serializers import EmptyBody, StrictSerializer, Text, WholeNumber
from etl.api import evaluation_openapi as openapi
from etl.api import evaluation_schemas as schemas
from etl.api.serializers import MAX_ID, AnyJSON, SubmitFileSerializer, is_form
from etl.api.views import POLL_SECONDS, TaskAPIView
from etl.evaluation import evaluations, samples
from etl.evaluation.evaluations import Comparison
from etl.ingest import acceptance, multipart, submission, uploads
from etl.models import Sample, Task
from etl.models.evaluation import MAX_EXPECTED_BYTES, EvaluationStatus
from etl.pipeline import queue_limit, quotas
from rules.api.openapi import operation
from rules.library import access
from rules.library.access import NoSuchRule, NotYourRule, ReadOnlyRule
from rules.models import Rule

NOT_OWNED = (NoSuchRule, ReadOnlyRule, NotYourRule)


def path_of(rule_id: int, rest: str) -> str:
    return f"/api/v1/etl/rules/{rule_id}/{rest}"


def own_rules(request: Request, rule_id: int) -> QuerySet[Rule]:
    """Return the rules that the user can change, after checking that this one is included.

    Raises NoSuchRule, ReadOnlyRule, and NotYourRule.
    """
    return access.changeable(user_of(request), rule_id)


# ---- Input ----------------------------------------------------------------------------------------------------------
class SampleOfTaskSerializer(StrictSerializer):
    """A sample of a document that was submitted earlier."""

    task_id = WholeNumber(min_value=1, max_value=MAX_ID)
    expected = AnyJSON(help_text="The data that the rule should extract.")


class SampleOfFileSerializer(SubmitFileSerializer):
    """A sample whose document is part of the request."""

    rule_id = keep_days = None  # type: ignore[assignment]
    expected = Text(max_length=MAX_EXPECTED_BYTES, help_text="The data that the rule should extract, as JSON.")


class EvaluateSerializer(StrictSerializer):
    """The version to evaluate."""

    version = WholeNumber(min_value=1, max_value=2**31 - 1, required=False, help_text="Default: the current one.")


# ---- Output ---------------------------------------------------------------------------------------------------------
def sample_body(sample: Sample) -> schemas.Sample:
    return {
        "sample_id": sample.pk,
        "task_id": sample.task_id,
        "filename": sample.task.filename,
        "expected": sample.expected,
        "created_at": sample.created_at,
    }


def evaluation_body(evaluation: Any) -> schemas.Evaluation:
    """Return the response body of an evaluation that has the totals of `evaluations.of_rule`."""
    error = evaluation.error
    return {
        "number": evaluation.number,
        "status": evaluation.status,
        "version": evaluation.version,
        "samples": evaluation.samples,
        "ended": evaluation.ended,
        "failed": evaluation.failed,
        "accuracy": evaluation.accuracy,
        "fields": evaluation.fields,
        "usage": {
            "prompt_tokens": evaluation.prompt_tokens,
            "completion_tokens": evaluation.completion_tokens,
            "calls": evaluation.calls,
        },
        "duration_ms": evaluation.duration_ms,
        "error": {"code": error["code"], "detail": error["detail"]} if error else None,
        "created_at": evaluation.created_at,
        "ended_at": evaluation.ended_at,
    }


def comparison_body(found: Comparison) -> schemas.EvaluationComparison:
    return {
        "a": evaluation_body(found.a),
        "b": evaluation_body(found.b),
        "change": found.change,
        "same_samples": found.is_same_set,
        "fields": [{"pointer": each.pointer, "a": each.a, "b": each.b, "change": each.change} for each in found.fields],
        "samples": [
            {
                "sample_id": each.sample.pk,
                "task_id": each.sample.task_id,
                "a": each.a,
                "b": each.b,
                "change": each.change,
            }
            for each in found.samples
        ],
    }


# ---- Samples --------------------------------------------------------------------------------------------------------
@extend_schema_view(
    get=operation(
        operation_id="listSamples",
        **openapi.LIST_SAMPLES,
        responses={200: list[schemas.Sample], **problems(BadInput, *NOT_OWNED)},
    )
)
class SamplesView(TaskAPIView, generics.ListAPIView[Sample]):
    """`GET` and `POST /rules/{rule_id}/samples`."""

    audited = OPENS_DATA
    scopes = RULES
    parser_classes = (ExactJSONParser, MultiPartParser)
    ordering = ("-id",)
    row_bytes = staticmethod(attrgetter("text_bytes"))

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """Limit the file's size before the CSRF check reads the body."""
        request.upload_handlers = [multipart.BoundedFile(request)]
        return super().initialize_request(request, *args, **kwargs)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        rule_id = kwargs["rule_id"]
        own_rules(request, rule_id)
        rows = Sample.objects.filter(rule=rule_id).with_task()
        sized = rows.annotate(text_bytes=text_size("expected"))
        return self.get_paginated_response([sample_body(row) for row in self.paginate_queryset(sized) or []])

    @operation(
        operation_id="addSample",
        **openapi.ADD_SAMPLE,
        request={"multipart/form-data": SampleOfFileSerializer},
        responses={
            200: schemas.Sample,
            201: schemas.Sample,
            **problems(
                BadInput, acceptance.EmptyFile, acceptance.UploadTooLarge, acceptance.TooManyPages, BodyTooLarge,
                acceptance.FormatNotAccepted, InFlight, KeyReused, quotas.QuotaExceeded, queue_limit.QueueFull,
                StorageUnavailable, samples.TooManySamples, *NOT_OWNED,
            ),
        },
    )  # fmt: skip
    def post(self, request: Request, rule_id: int) -> Response:
        if not is_form(request):
            return add_task(request, rule_id)
        require_scope(request, "documents:write")
        user, rules = user_of(request), own_rules(request, rule_id)
        fields = SampleOfFileSerializer.read(request.data)
        expected = samples.parse(fields["expected"])
        samples.check(access.visible(user, rule_id), expected)  # before the document is submitted
        task = submit(request, fields["file"], user=user, rule_id=rule_id)
        return sample_response(*samples.add(rules, rule_id, task, expected))


def add_task(request: Request, rule_id: int) -> Response:
    user, rules = user_of(request), own_rules(request, rule_id)
    fields = SampleOfTaskSerializer.read(request.data)
    task = samples.owned_task(fields["task_id"], user=user)
    return sample_response(*samples.add(rules, rule_id, task, fields["expected"]))


def sample_response(sample: Sample, is_new: bool) -> Response:  # noqa: FBT001 - the pair that `add` returns
    headers = {"Location": path_of(sample.rule_id, "samples")} if is_new else {}
    return Response(sample_body(sample), status=201 if is_new else 200, headers=headers)


class TaskSampleView(TaskAPIView):
    """`POST /rules/{rule_id}/samples/task`: adds a task as a sample."""

    scopes = RULES
    parser_classes = (ExactJSONParser,)

    @operation(
        operation_id="addTaskSample",
        **openapi.ADD_TASK_SAMPLE,
        request=SampleOfTaskSerializer,
        responses={
            200: schemas.Sample,
            201: schemas.Sample,
            **problems(BadInput, samples.TooManySamples, *NOT_OWNED),
        },
    )
    def post(self, request: Request, rule_id: int) -> Response:
        return add_task(request, rule_id)


def submit(request: Request, file: Any, *, user: User, rule_id: int) -> Task:
    """Submit the document of a sample. It stays submitted if the process dies before the sample is added."""
    document = uploads.SentFile(file)
    idempotency = Idempotency.of(request, body=lambda: {**document.identity(), "sample_of": rule_id})
    task, _ = submission.submit(
        document, user=user, rule_id=rule_id, request_id=request_id(request._request), idempotency=idempotency
    )
    return task


class SampleView(TaskAPIView):
    """`DELETE /rules/{rule_id}/samples/{sample_id}`."""

    scopes = RULES

    @operation(
        operation_id="deleteSample",
        **openapi.DELETE_SAMPLE,
        responses={
            204: OpenApiResponse(description="Deleted"),
            **problems(samples.NoSuchSample, *NOT_OWNED),
        },
    )
    def delete(self, request: Request, rule_id: int, sample_id: int) -> Response:
        own_rules(request, rule_id)
        samples.delete(rule_id, sample_id)
        return Response(status=204)


# ---- Evaluations ----------------------------------------------------------------------------------------------------
@extend_schema_view(
    get=operation(
        operation_id="listEvaluations",
        **openapi.LIST,
        responses={200: list[schemas.Evaluation], **problems(BadInput, *NOT_OWNED)},
    )
)
class EvaluationsView(TaskAPIView, generics.ListAPIView[Any]):
    """`GET` and `POST /rules/{rule_id}/evaluations`."""

    audited = CHANGES
    scopes = RULES
    ordering = ("-id",)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        own_rules(request, kwargs["rule_id"])
        rows = self.paginate_queryset(evaluations.of_rule(kwargs["rule_id"])) or []
        return self.get_paginated_response([evaluation_body(row) for row in rows])

    @operation(
        operation_id="startEvaluation",
        **openapi.START,
        request=EvaluateSerializer,
        responses={
            202: openapi.STARTED,
            **problems(
                BadInput, evaluations.NoSamples, evaluations.NothingToEvaluate, evaluations.AlreadyRunning,
                evaluations.TooManyEvaluations, quotas.QuotaExceeded, *NOT_OWNED,
            ),
        },
    )  # fmt: skip
    def post(self, request: Request, rule_id: int) -> Response:
        rules = own_rules(request, rule_id)
        version = EvaluateSerializer.read(request.data).get("version")
        started = evaluations.start(rules, rule_id, version=version, user=user_of(request))
        headers = {
            "Location": path_of(rule_id, f"evaluations/{started.number}"),
            "Retry-After": str(POLL_SECONDS),
        }
        found = evaluations.find(rule_id, started.number)
        return Response(evaluation_body(found), status=202, headers=headers)


class EvaluationView(TaskAPIView):
    """`GET /rules/{rule_id}/evaluations/{number}`."""

    audited = CHANGES
    scopes = RULES

    @operation(
        operation_id="getEvaluation",
        **openapi.GET,
        responses={200: schemas.Evaluation, **problems(evaluations.NoSuchEvaluation, *NOT_OWNED)},
    )
    def get(self, request: Request, rule_id: int, number: int) -> Response:
        own_rules(request, rule_id)
        found = evaluations.find(rule_id, number)
        headers = {"Retry-After": str(POLL_SECONDS)} if found.status == EvaluationStatus.RUNNING else {}
        return Response(evaluation_body(found), headers=headers)


class CancelEvaluationView(TaskAPIView):
    """`POST /rules/{rule_id}/evaluations/{number}/cancel`."""

    scopes = RULES

    @operation(
        operation_id="cancelEvaluation",
        **openapi.CANCEL,
        request=EmptyBody,
        responses={
            200: schemas.Evaluation,
            **problems(BadInput, evaluations.NoSuchEvaluation, evaluations.NotRunning, *NOT_OWNED),
        },
    )
    def post(self, request: Request, rule_id: int, number: int) -> Response:
        own_rules(request, rule_id)
        EmptyBody.read(request.data)
        evaluations.cancel(evaluations.find(rule_id, number))
        return Response(evaluation_body(evaluations.find(rule_id, number)))


class CompareEvaluationsView(TaskAPIView):
    """`GET /rules/{rule_id}/evaluations/compare?a=1&b=2`."""

    audited = CHANGES
    scopes = RULES

    @operation(
        operation_id="compareEvaluations",
        **openapi.COMPARE,
        responses={
            200: schemas.EvaluationComparison,
            **problems(BadInput, evaluations.NoSuchEvaluation, *NOT_OWNED),
        },
    )
    def get(self, request: Request, rule_id: int) -> Response:
        own_rules(request, rule_id)
        a, b = (number_of(request, name) for name in ("a", "b"))
        return Response(comparison_body(evaluations.compare(rule_id, a, b)))


def number_of(request: Request, name: str) -> int:
    """Return the number of an evaluation from a query parameter. Raises ValidationError at the parameter."""
    number = whole_number(request.query_params.get(name, ""), maximum=2**31 - 1)
    if not number:
        raise refusal(name, "Must be the number of an evaluation.")
    return number
