"""The HTTP interface of document ETL: translate, one call, translate back."""

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.api.auth import user_of
from config.api.idempotency import REPLAYED, Idempotency, InFlight, KeyReused
from config.api.paging import chosen
from config.api.parsers import JSONParser
from config.api.problems import BadInput, BodyTooLarge, NotFound, StorageUnavailable
from config.api.requests import request_id
from config.api.schema import problems
from config.api.serializers import Nothing
from etl import admission, bodies, control, lookup, operations, refusals, representation, schemas, submission, uploads
from etl.models import Task
from etl.runstate import RunState
from etl.serializers import (
    RetrySerializer,
    SubmitFileSerializer,
    SubmitKeySerializer,
    UploadRequestSerializer,
    Wanted,
    read_seconds,
)
from etl.states import Status
from rules import catalog, rates

POLL_SECONDS = 2
MOST_SECONDS = 60  # that a request may wait for a change


class NoSuchTask(NotFound):
    """Task not found"""


class View(APIView):
    """The base of all views here: their rates."""

    throttle_classes = (rates.PerUser,)


def seen(request: Request, task_id: int) -> RunState:
    """Return what is known of a task if the user may see it. A stranger's looks like one that is not there."""
    state = lookup.find(task_id, user=user_of(request))
    if state is None:
        raise NoSuchTask
    return state


def owned(request: Request, task_id: int) -> Task:
    """Return the row of a task that is going to be changed, if the user may see it."""
    task = Task.objects.owned_by(request.user).filter(pk=task_id).first()
    if task is None:
        raise NoSuchTask
    return task


# ---- On the way in --------------------------------------------------------------------------------------------------


class Submit(View):
    """`POST /submit`: a document, in the request or uploaded before, becomes a task."""

    parser_classes = (JSONParser, MultiPartParser)

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """Bound the file before anything reads the body: the check of a session's CSRF token does."""
        request.upload_handlers = [bodies.BoundedFile(request)]
        return super().initialize_request(request, *args, **kwargs)

    @extend_schema(
        operation_id="submitDocument",
        tags=operations.TAGS,
        **operations.SUBMIT,
        request={"multipart/form-data": SubmitFileSerializer, "application/json": SubmitKeySerializer},
        responses={
            202: operations.ACCEPTED,
            **problems(
                BadInput, refusals.EmptyDocument, refusals.FileTooLarge, BodyTooLarge, refusals.UnsupportedFormat,
                InFlight, KeyReused, admission.QueueFull, StorageUnavailable, catalog.NoDefaultRule,
            ),
        },
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        wanted, user = Wanted(request), user_of(request)
        document: uploads.SentFile | uploads.EarlierUpload
        if wanted.file is not None:
            document = uploads.SentFile(wanted.file)
        else:
            document = uploads.EarlierUpload(wanted.file_key, user_id=user.pk)
        idempotency = Idempotency.of(request, body=lambda: {**document.identity(), "rule_id": wanted.rule_id})
        made = submission.find(user.pk, idempotency) if idempotency else None
        if made:
            return accepted(made.pk, replayed=True)
        try:
            task = submission.submit(
                document,
                user=user,
                rule_id=wanted.rule_id,
                request_id=request_id(request._request),
                idempotency=idempotency,
            )
        except submission.AlreadyMade as earlier:
            return accepted(earlier.task.pk, replayed=True)
        return accepted(task.pk)


def accepted(task_id: int, *, replayed: bool = False) -> Response:
    """The answer to whoever made a task, or made it before under the same Idempotency-Key: byte for byte the same."""
    headers = {"Location": representation.path_of(task_id), "Retry-After": str(POLL_SECONDS)}
    if replayed:
        headers[REPLAYED] = "true"
    return Response(representation.accepted(task_id), status=202, headers=headers)


class Uploads(View):
    """`POST /uploads`: a place for a document that is too large, or too far away, to send it through here."""

    @extend_schema(
        operation_id="createUpload",
        tags=operations.TAGS,
        **operations.UPLOADS,
        request=UploadRequestSerializer,
        responses={
            201: schemas.UploadPlace,
            **problems(BadInput, refusals.EmptyDocument, refusals.FileTooLarge, refusals.UnsupportedFormat),
        },
    )
    def post(self, request: Request) -> Response:
        serializer = UploadRequestSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        place = uploads.offer(user_id=user_of(request).pk, **serializer.validated_data)
        return Response(representation.place(place), status=201, headers={"Cache-Control": "no-store"})


# ---- Looking --------------------------------------------------------------------------------------------------------


class OneTask(View):
    """`GET /tasks/{id}`: always 200 for a task that is there; its state is in the body."""

    @extend_schema(
        operation_id="getTask",
        tags=operations.TAGS,
        **operations.GET,
        responses={200: operations.ONE, **problems(BadInput, NoSuchTask)},
    )
    def get(self, request: Request, task_id: int) -> Response:
        seconds = read_seconds(request, "wait", most=MOST_SECONDS)
        state = lookup.wait_for_change(seen(request, task_id), user=user_of(request), seconds=seconds)
        headers = {} if state.has_ended else {"Retry-After": str(POLL_SECONDS)}
        return Response(representation.task(state), headers=headers)


@extend_schema_view(
    get=extend_schema(
        operation_id="listTasks",
        tags=operations.TAGS,
        **operations.LIST,
        responses={200: schemas.TaskSummary(many=True), **problems(BadInput)},
    )
)
class Tasks(View, generics.ListAPIView[Task]):
    """`GET /tasks`: my tasks, newest first."""

    ordering = ("-created_at", "-task_id")

    def get_queryset(self) -> QuerySet[Task]:
        tasks = Task.objects.filter(user=user_of(self.request)).defer("result")
        status = self.status()
        return lookup.with_status(tasks, status) if status else tasks

    def status(self) -> str | None:
        return chosen(self.request, "status", among=Status.values)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        wanted = self.status()
        states = lookup.shown(self.paginate_queryset(self.get_queryset()) or [])
        # One may have moved on while the page was read. The page is shorter by it then.
        fitting = [state for state in states if wanted in (None, state.status)]
        return self.get_paginated_response([representation.summary(state) for state in fitting])


# ---- Changing -------------------------------------------------------------------------------------------------------


class Cancel(View):
    """`POST /tasks/{id}/cancel`: end a task that no worker has begun with; 409 otherwise."""

    @extend_schema(
        operation_id="cancelTask",
        tags=operations.TAGS,
        **operations.CANCEL,
        request=None,
        responses={
            200: schemas.CancelledTask,
            **problems(BadInput, NoSuchTask, control.NotCancellable, control.RunStateUnavailable),
        },
    )
    def post(self, request: Request, task_id: int) -> Response:
        Nothing.read(request.data)
        control.cancel(task=owned(request, task_id))
        return Response({"task_id": task_id, "status": Status.CANCELLED})


class Retry(View):
    """`POST /tasks/{id}/retry`: the same document once more, from one of the stages."""

    @extend_schema(
        operation_id="retryTask",
        tags=operations.TAGS,
        **operations.RETRY,
        request=RetrySerializer,
        responses={
            202: operations.ACCEPTED,
            **problems(
                BadInput,
                NoSuchTask,
                control.NotEnded,
                control.ArtefactMissing,
                admission.QueueFull,
                control.RunStateUnavailable,
                StorageUnavailable,
            ),
        },
    )
    def post(self, request: Request, task_id: int) -> Response:
        task = owned(request, task_id)
        serializer = RetrySerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        control.retry(
            task=task,
            from_stage=serializer.validated_data["from_stage"],
            rule_content=control.rule_of(task, serializer.validated_data.get("rule_id"), user=user_of(request)),
        )
        return accepted(task_id)
