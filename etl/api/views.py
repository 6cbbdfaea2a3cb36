"""API views of documents. Each translates the request, calls one function, and translates the result."""

from typing import Any

from django.http import HttpRequest
from drf_spectacular.utils import OpenApiResponse, extend_schema_view
from rest_framework import generics
from rest_framework.parsers import BaseParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.platform.http import staff
from config.platform.http.audit import CHANGES
from config.platform.http.auth import credential_of, user_of
from config.platform.http.idempotency import Idempotency, InFlight, KeyReused, replay_headers
from config.platform.http.openapi.responses import problems
from config.platform.http.parsers import JSONParser
from config.platform.http.problems import (
    BadInput,
    BodyTooLarge,
    NotPermitted,
    StorageUnavailable,
    require_first,
)
from config.platform.http.renderers import ExactJSONRenderer
from config.platform.http.request_context import request_id
from config.platform.http.responses import SECRET
from config.platform.http.scopes import DOCUMENTS
from etl.api import lookup, openapi
from etl.api.search import TaskFilter
from etl.api.serializers import (
    CancelSerializer,
    RetrySerializer,
    SubmitFileSerializer,
    SubmitInput,
    SubmitKeySerializer,
    UploadRequestSerializer,
    read_choice,
    read_flag,
    read_number,
)
from etl.core.states import Status
from etl.ingest import acceptance, multipart, submission, uploads
from etl.models import Task
from etl.models.task import TaskQuerySet
from etl.pipeline import actions, deletion, queue_limit, quotas, representation, schemas
from etl.runstate import RunState
from rules.api import rates
from rules.library import catalog

POLL_SECONDS = 2
MAX_SECONDS = 60  # maximum time that a request waits for a change


class TaskAPIView(APIView):
    """Base class of the views, with their scope, rate limit, and JSON renderer."""

    scopes = DOCUMENTS
    throttle_classes = (rates.EtlThrottle,)
    renderer_classes = (ExactJSONRenderer,)


def visible(request: Request, task_id: int) -> RunState:
    """Return the state of a task. Raises NoSuchTask, also if the user may not view it."""
    state = lookup.find(task_id, user=user_of(request))
    if state is None:
        raise actions.NoSuchTask
    return state


def changeable(request: Request, task_id: int) -> Task:
    """Return the row of a task to change.

    Raises NoSuchTask, also if the user may not view it, and NotPermitted if the user may only view it.
    """
    task = require_first(Task.objects.visible_to(request.user).filter(pk=task_id), actions.NoSuchTask)
    staff.require_change(request.user, task)
    return task


# ---- Submission -----------------------------------------------------------------------------------------------------


SUBMIT_PROBLEMS = (
    BadInput, acceptance.EmptyFile, acceptance.UploadTooLarge, acceptance.TooManyPages, BodyTooLarge,
    acceptance.FormatNotAccepted, InFlight, KeyReused, quotas.QuotaExceeded, queue_limit.QueueFull, StorageUnavailable,
    catalog.NoDefaultRule,
)  # fmt: skip


class SubmitView(TaskAPIView):
    """`POST /submit`: creates a task for a document in the request or an earlier upload.

    The OpenAPI document describes only the former, because client generators expect one media type per operation.
    """

    parser_classes: tuple[type[BaseParser], ...] = (JSONParser, MultiPartParser)

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """Limit the file's size before the CSRF check reads the body."""
        request.upload_handlers = [multipart.BoundedFile(request)]
        return super().initialize_request(request, *args, **kwargs)

    @openapi.operation(
        operation_id="submitDocument",
        **openapi.SUBMIT,
        request={"multipart/form-data": SubmitFileSerializer},
        responses={202: openapi.ACCEPTED, **problems(*SUBMIT_PROBLEMS)},
    )
    def post(self, request: Request) -> Response:
        wanted, user = SubmitInput(request), user_of(request)
        document: uploads.SentFile | uploads.EarlierUpload
        if wanted.file is not None:
            document = uploads.SentFile(wanted.file)
        else:
            document = uploads.EarlierUpload(wanted.file_key, user_id=user.pk)
        idempotency = Idempotency.of(request, body=lambda: {**document.identity(), **wanted.identity()})
        task, replayed = submission.submit(
            document,
            user=user,
            rule_id=wanted.rule_id,
            keep_days=wanted.keep_days,
            request_id=request_id(request._request),
            idempotency=idempotency,
        )
        # A repeated request must get the first response. For an earlier upload, that response named no duplicate,
        # because the digest was not known yet.
        duplicate_of = task.duplicate_of if wanted.file is not None else None
        return accepted(task.pk, duplicate_of=duplicate_of, replayed=replayed)


class SubmitUploadedView(SubmitView):
    """`POST /submit/uploaded`: creates a task for an earlier upload."""

    parser_classes = (JSONParser,)

    @openapi.operation(
        operation_id="submitUploadedDocument",
        **openapi.SUBMIT_UPLOADED,
        request=SubmitKeySerializer,
        responses={202: openapi.ACCEPTED, **problems(*SUBMIT_PROBLEMS)},
    )
    def post(self, request: Request) -> Response:
        return super().post(request)


def accepted(task_id: int, *, duplicate_of: int | None, replayed: bool = False) -> Response:
    """Return the response to a submission. A repeated request with the same idempotency key gets the same body."""
    headers = {"Location": representation.path_of(task_id), "Retry-After": str(POLL_SECONDS)}
    body = representation.accepted(task_id, duplicate_of=duplicate_of)
    return Response(body, status=202, headers=headers | replay_headers(replayed=replayed))


class UploadView(TaskAPIView):
    """`POST /uploads`: creates a presigned upload URL, for large documents and slow connections."""

    @openapi.operation(
        operation_id="createUpload",
        **openapi.UPLOADS,
        request=UploadRequestSerializer,
        responses={
            201: schemas.UploadPlace,
            **problems(
                BadInput,
                acceptance.EmptyFile,
                acceptance.UploadTooLarge,
                acceptance.FormatNotAccepted,
                quotas.QuotaExceeded,
            ),
        },
    )
    def post(self, request: Request) -> Response:
        target = uploads.create(user_id=user_of(request).pk, **UploadRequestSerializer.read(request.data))
        return Response(uploads.body_of(target), status=201, headers=SECRET)


# ---- Reading --------------------------------------------------------------------------------------------------------


class TaskView(TaskAPIView):
    """`GET /tasks/{id}`: returns 200 for a task with any status. `DELETE`: deletes the task with its objects."""

    audited = CHANGES

    @openapi.operation(
        operation_id="getTask",
        **openapi.GET,
        responses={200: openapi.SINGLE_TASK, **problems(BadInput, actions.NoSuchTask)},
    )
    def get(self, request: Request, task_id: int) -> Response:
        seconds = read_number(request, "wait", minimum=0, maximum=MAX_SECONDS, default=0, unit="seconds")
        state = visible(request, task_id)
        if seconds and not state.has_ended:
            credential = credential_of(request, owner_id=state.user_id, model=Task)
            state = lookup.wait_for_change(state, user=user_of(request), credential=credential, seconds=seconds)
        headers = {} if state.has_ended else {"Retry-After": str(POLL_SECONDS)}
        state = lookup.open_result(state, user=user_of(request))
        task = representation.task(state, previous_result=lookup.previous_result(state))
        return Response(task, headers=headers)

    @openapi.operation(
        operation_id="deleteTask",
        **openapi.DELETE,
        responses={
            204: OpenApiResponse(description="Deleted"),
            **problems(BadInput, NotPermitted, actions.NoSuchTask, deletion.NotDeletable, actions.RunStateUnavailable),
        },
    )
    def delete(self, request: Request, task_id: int) -> Response:
        is_forced = read_flag(request, "force")
        task = changeable(request, task_id)
        staff.require_change(request.user, task, "delete")
        deletion.delete(task, user=user_of(request), message="Over the API: deleted.", is_forced=is_forced)
        return Response(status=204)


@extend_schema_view(
    get=openapi.operation(
        operation_id="listTasks",
        **openapi.LIST,
        responses={200: list[schemas.TaskSummary], **problems(BadInput)},
    )
)
class TaskListView(TaskAPIView, generics.ListAPIView[Task]):
    """`GET /tasks`: lists and searches the user's tasks, newest first."""

    audited = CHANGES
    ordering = ("-created_at", "-task_id")

    def get_queryset(self) -> TaskQuerySet:
        return Task.objects.filter(user=user_of(self.request)).without_results().prefetch_related("approved_by")

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        wanted = TaskFilter.read(request.query_params)
        conditions = {name: read_choice(request, name) for name in ("approved", "corrected")}
        tasks = self.get_queryset().reviewed(**conditions)
        states = lookup.states_of_rows(self.paginate_queryset(wanted.apply(tasks)) or [])
        # Omit tasks whose status has changed since the query.
        matching = [state for state in states if wanted.status in ("", state.status)]
        return self.get_paginated_response([representation.summary(state) for state in matching])


# ---- Changing -------------------------------------------------------------------------------------------------------


class CancelTaskView(TaskAPIView):
    """`POST /tasks/{id}/cancel`: cancels a waiting task; with `force`, also a running one. 409 otherwise."""

    @openapi.operation(
        operation_id="cancelTask",
        **openapi.CANCEL,
        request=CancelSerializer,
        responses={
            200: schemas.CancelledTask,
            **problems(BadInput, NotPermitted, actions.NoSuchTask, actions.NotCancellable, actions.RunStateUnavailable),
        },
    )
    def post(self, request: Request, task_id: int) -> Response:
        is_forced = CancelSerializer.read(request.data)["force"]
        task = changeable(request, task_id)
        with staff.recorded(request.user, task, "Over the API: cancelled."):
            actions.cancel(task=task, is_forced=is_forced)
        return Response({"task_id": task_id, "status": Status.CANCELLED})


class RetryTaskView(TaskAPIView):
    """`POST /tasks/{id}/retry`: processes the document again, from one of the stages."""

    @openapi.operation(
        operation_id="retryTask",
        **openapi.RETRY,
        request=RetrySerializer,
        responses={
            202: openapi.ACCEPTED,
            **problems(
                BadInput,
                NotPermitted,
                actions.NoSuchTask,
                actions.NotEnded,
                actions.OcrResultMissing,
                quotas.QuotaExceeded,
                queue_limit.QueueFull,
                actions.RunStateUnavailable,
                StorageUnavailable,
            ),
        },
    )
    def post(self, request: Request, task_id: int) -> Response:
        task = changeable(request, task_id)
        fields = RetrySerializer.read(request.data)
        rule = actions.rule_of(task, fields.get("rule_id"), user=user_of(request))
        with staff.recorded(request.user, task, f"Over the API: retried from {fields['from_stage']}."):
            actions.retry(task=task, from_stage=fields["from_stage"], rule_content=rule)
        return accepted(task_id, duplicate_of=task.duplicate_of)
