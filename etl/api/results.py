"""API views of results: reading, correction, approval, and history."""

from functools import partial
from operator import attrgetter
from typing import Any

from django.db.models import QuerySet
from django.http.response import HttpResponseBase
from django.utils.cache import get_conditional_response
from drf_spectacular.utils import OpenApiResponse, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response

from config.platform.db.text_size import text_size
from config.platform.http import staff
from config.platform.http.audit import OPENS_DATA
from config.platform.http.auth import user_of
from config.platform.http.openapi.responses import problems
from config.platform.http.parsers import ExactJSONParser
from config.platform.http.problems import BadInput, NotPermitted, require_first
from config.platform.http.serializers import EmptyBody
from etl.api import lookup, openapi
from etl.api.serializers import CorrectionSerializer, read_flag
from etl.api.views import TaskAPIView, changeable, visible
from etl.core.states import Status
from etl.models import ReviewEvent, Task
from etl.pipeline import actions, representation, review, schemas
from etl.runstate import RunState


class ResultView(TaskAPIView):
    """`GET /tasks/{id}/result`, and `PATCH` to correct its data."""

    audited = OPENS_DATA
    parser_classes = (ExactJSONParser,)

    @openapi.operation(
        operation_id="getResult",
        **openapi.RESULT,
        responses={
            200: schemas.RESULT,
            304: OpenApiResponse(description="`If-None-Match` matches: the result has not changed."),
            **problems(BadInput, actions.NoSuchTask, review.NotCompleted),
        },
    )
    def get(self, request: Request, task_id: int) -> HttpResponseBase:
        is_original = read_flag(request, "original")
        state = visible(request, task_id)
        if state.status != Status.COMPLETED:
            raise review.NotCompleted
        lookup.record_access(state, user=user_of(request), message="Over the API: opened the result.")
        etag = review.tag_of(state.run, 0) if is_original else review.tag(state)
        unchanged = get_conditional_response(request._request, etag=etag)
        response = unchanged or Response(original_of(state) if is_original else state.result)
        response["ETag"] = etag
        return response

    @openapi.operation(
        operation_id="correctResult",
        **openapi.CORRECT,
        request={"application/json": schemas.CORRECTION},
        responses={
            200: schemas.RESULT,
            **problems(
                BadInput, NotPermitted, actions.NoSuchTask, review.NotCompleted, review.NoData, review.Stale,
                review.SchemaMismatch, review.ConditionMissing, actions.RunStateUnavailable,
            ),
        },
    )  # fmt: skip
    def patch(self, request: Request, task_id: int) -> Response:
        task = reviewable(request, task_id)
        patch = CorrectionSerializer.read(request.data)["data"]
        with staff.recorded(request.user, task, "Over the API: corrected the result."):
            row = review.correct(
                task,
                partial(review.merged, task, patch),
                user=user_of(request),
                if_match=request.headers.get("If-Match"),
            )
        etag = review.tag_of(row.run, row.review.corrections)
        return Response(row.current_result, headers={"ETag": etag})


def reviewable(request: Request, task_id: int) -> Task:
    """Return the row of a task whose result the user may open and change. Raises NoSuchTask and NotPermitted."""
    task = changeable(request, task_id)
    staff.require_data(request.user, task.user_id)
    return task


def original_of(state: RunState) -> dict[str, Any] | None:
    """Return the result without corrections. Raises NotCompleted if the task was retried or deleted meanwhile."""
    if not state.review.corrections:
        return state.result
    return require_first(Task.objects.filter(pk=state.task_id, run=state.run), review.NotCompleted).original_result


class ApprovalView(TaskAPIView):
    """`POST /tasks/{id}/approve`, and `DELETE` to remove the approval."""

    @openapi.operation(
        operation_id="approveResult",
        **openapi.APPROVE,
        request=None,
        responses={
            200: schemas.TaskSummary,
            **problems(
                BadInput,
                NotPermitted,
                actions.NoSuchTask,
                review.NotCompleted,
                review.Stale,
                actions.RunStateUnavailable,
            ),
        },
    )
    def post(self, request: Request, task_id: int) -> Response:
        task = reviewable(request, task_id)
        EmptyBody.read(request.data)
        with staff.recorded(request.user, task, "Over the API: approved the result."):
            row = review.approve(task, user=user_of(request), if_match=request.headers.get("If-Match"))
        return Response(representation.summary(RunState.of_row(row)))

    @openapi.operation(
        operation_id="removeApproval",
        **openapi.DISAPPROVE,
        responses={
            204: OpenApiResponse(description="Not approved"),
            **problems(NotPermitted, actions.NoSuchTask, review.NotCompleted, actions.RunStateUnavailable),
        },
    )
    def delete(self, request: Request, task_id: int) -> Response:
        task = reviewable(request, task_id)
        with staff.recorded(request.user, task, "Over the API: removed the approval of the result."):
            review.remove_approval(task, user=user_of(request))
        return Response(status=204)


@extend_schema_view(
    get=openapi.operation(
        operation_id="listReviewEvents",
        **openapi.HISTORY,
        responses={200: list[schemas.ReviewEvent], **problems(BadInput, actions.NoSuchTask)},
    )
)
class HistoryView(TaskAPIView, generics.ListAPIView[ReviewEvent]):
    """`GET /tasks/{id}/history`: corrections and approvals, newest first."""

    audited = OPENS_DATA
    ordering = ("-id",)
    row_bytes = staticmethod(attrgetter("text_bytes"))

    def get_queryset(self) -> QuerySet[ReviewEvent]:
        events = ReviewEvent.objects.filter(task_id=self.kwargs["task_id"]).select_related("user")
        return events.annotate(text_bytes=text_size("change"))

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        state = visible(request, kwargs["task_id"])
        lookup.record_access(state, user=user_of(request), message="Over the API: opened the corrections.")
        events = self.paginate_queryset(self.get_queryset()) or []
        return self.get_paginated_response([representation.review_event(event) for event in events])
