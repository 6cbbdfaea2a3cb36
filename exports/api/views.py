"""API views of exports. Each translates the request, calls one function, and translates the result."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.platform import built_in_datasets
from config.platform.http import staff
from config.platform.http.addresses import client_address
from config.platform.http.audit import CHANGES, NOTHING
from config.platform.http.auth import user_of
from config.platform.http.idempotency import Idempotency, InFlight, KeyReused, replay_headers
from config.platform.http.openapi.responses import problems
from config.platform.http.paging import chosen
from config.platform.http.problems import BadInput, NotFound, NotPermitted, require_first
from config.platform.http.request_context import request_id
from config.platform.http.responses import SECRET
from config.platform.http.scopes import EXPORTS, is_limited, permits, require_scope
from config.platform.http.serializers import EmptyBody
from exports.api import openapi, openapi_extensions  # noqa: F401 - the extensions register themselves
from exports.api.search import ExportFilter
from exports.api.serializers import ExportRequestSerializer
from exports.core.states import ChunkStatus
from exports.delivery import links
from exports.delivery.access import AccessRemoved
from exports.jobs import actions, quotas, representation, schemas, submission
from exports.jobs.columns import ColumnsUnknown
from exports.models import Chunk, Dataset, Job
from exports.schedules.requests import Reader

POLL_SECONDS = 2


@extend_schema_view(
    get=extend_schema(
        operation_id="listExports",
        **openapi.LIST,
        responses={200: list[schemas.Job], **problems(BadInput)},
    )
)
class ExportListView(generics.ListAPIView[Job]):
    """`GET /exports`: lists the user's jobs, newest first, optionally filtered. `POST /exports`: creates a job."""

    audited = CHANGES
    scopes = EXPORTS
    ordering = ("-created_at", "-job_id")

    def get_queryset(self) -> QuerySet[Job]:
        jobs = representation.with_details(Job.objects.filter(user_id=user_of(self.request).pk))
        for each in built_in_datasets.all_by_name().values():
            if not permits(self.request, each.scope):
                jobs = jobs.exclude(dataset__kind=each.name)
        return ExportFilter.read(self.request.query_params).apply(jobs)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(self.get_queryset()) or []
        response = self.get_paginated_response([representation.job(job, request) for job in page])
        response["Cache-Control"] = SECRET["Cache-Control"]
        return response

    @extend_schema(
        operation_id="createExport",
        **openapi.CREATE,
        request=ExportRequestSerializer,
        responses={
            202: openapi.ACCEPTED,
            **problems(BadInput, ColumnsUnknown, InFlight, KeyReused, quotas.QuotaExceeded),
        },
    )
    def post(self, request: Request) -> Response:
        caller, read = caller_of(request, Idempotency.of(request)), reader_of(request)
        return accepted(*submission.submit(lambda: read(request.data, caller.user_id), caller))


def reader_of(request: Request) -> Reader:
    """Return the function that validates a body of `POST /exports`. It also raises InsufficientScope."""

    def read(data: Any, user_id: int) -> submission.ExportRequest:
        wanted = ExportRequestSerializer.read(data, user_id)
        require_dataset_scope(request, wanted.dataset)
        return wanted

    return read


def require_dataset_scope(request: Request, dataset: Dataset) -> None:
    """Raise InsufficientScope if a token may not read the rows of a built-in dataset."""
    if is_limited(request) and dataset.built_in:  # in this order: `built_in` may need a query
        require_scope(request, dataset.built_in.scope)


def caller_of(request: Request, idempotency: Idempotency | None = None) -> submission.Caller:
    return submission.Caller(
        user_id=user_of(request).pk,
        request_id=request_id(request._request),
        binding=links.bound_to(client_of(request)),
        idempotency=idempotency,
    )


def client_of(request: Request) -> links.LinkClient:
    address = client_address(request)
    return links.LinkClient(address=str(address) if address else None, user_agent=request.headers.get("User-Agent", ""))


def accepted(job: Job, replayed: bool) -> Response:  # noqa: FBT001 - takes the result of `submit`
    """Return the response to a submission. A repeated request with the same idempotency key gets the same bytes."""
    headers = {"Location": f"/exports/{job.job_id}", "Retry-After": str(POLL_SECONDS)}
    return Response(representation.accepted(job), status=202, headers=headers | replay_headers(replayed=replayed))


class PreviewView(APIView):
    """`POST /exports/preview`: returns the effect that the same `POST /exports` would have."""

    audited = NOTHING
    scopes = EXPORTS

    @extend_schema(
        operation_id="previewExport",
        **openapi.PREVIEW,
        request=ExportRequestSerializer,
        responses={200: schemas.Preview, **problems(BadInput, ColumnsUnknown)},
    )
    def post(self, request: Request) -> Response:
        return Response(submission.preview(reader_of(request)(request.data, user_of(request).pk)))


class LimitsView(APIView):
    """`GET /exports/limits`: returns the daily quota, its usage, and the other limits."""

    audited = CHANGES
    scopes = EXPORTS

    @extend_schema(operation_id="getLimits", **openapi.LIMITS, responses={200: schemas.Limits})
    def get(self, request: Request) -> Response:
        return Response(representation.limits(quotas.state(user_of(request).pk)))


class DatasetListView(APIView):
    """`GET /exports/datasets`: lists the datasets that the user may export."""

    audited = CHANGES
    scopes = EXPORTS

    @extend_schema(operation_id="listDatasets", **openapi.DATASETS, responses={200: schemas.Datasets})
    def get(self, request: Request) -> Response:
        granted = Dataset.objects.granted_to(user_of(request).pk).in_order()
        return Response({"results": [representation.dataset(each) for each in granted], "next": None, "previous": None})


class NoSuchDataset(NotFound):
    detail = "Dataset not found."


class DatasetView(APIView):
    """`GET /exports/datasets/{name}`: returns the dataset with its columns."""

    audited = CHANGES
    scopes = EXPORTS

    @extend_schema(
        operation_id="getDataset",
        **openapi.ONE_DATASET,
        responses={200: schemas.DatasetDetail, **problems(NoSuchDataset, ColumnsUnknown)},
    )
    def get(self, request: Request, name: str) -> Response:
        found = Dataset.objects.granted_to(user_of(request).pk).filter(name=name)
        return Response(representation.dataset_detail(require_first(found, NoSuchDataset)))


class NoSuchExport(NotFound):
    detail = "Export not found."


def visible(request: Request, job_id: UUID, *, by_staff: bool = True) -> Job:
    """Return the job if the user may see it. Raises InsufficientScope, and NoSuchExport, also for another user's job.

    Staff with the permission may see every job (if `by_staff`), but may not create links or download files.
    """
    user = user_of(request)
    job = representation.find(job_id, user_id=user.pk, any_owner=by_staff and staff.may(user, Job))
    if job is None:
        raise NoSuchExport
    require_dataset_scope(request, job.dataset)
    return job


def changeable(request: Request, job_id: UUID) -> Job:
    """Return the job if the user may change it. Raises NoSuchExport, and NotPermitted if the user may only see it."""
    job = visible(request, job_id)
    staff.require_change(user_of(request), job)
    return job


class ExportView(APIView):
    """`GET /exports/{jobId}`: returns 200 for every existing job, regardless of its status."""

    audited = CHANGES
    scopes = EXPORTS

    @extend_schema(
        operation_id="getExport",
        **openapi.GET,
        responses={200: openapi.ONE, **problems(NoSuchExport)},
    )
    def get(self, request: Request, job_id: UUID) -> Response:
        job = visible(request, job_id)
        headers = {} if job.has_ended else {"Retry-After": str(POLL_SECONDS)}
        return Response(representation.job(job, request), headers=SECRET | headers)


@extend_schema_view(
    get=extend_schema(
        operation_id="listChunks",
        **openapi.CHUNKS,
        responses={200: list[schemas.Chunk], **problems(BadInput, NoSuchExport)},
    )
)
class ChunkListView(generics.ListAPIView[Chunk]):
    """`GET /exports/{jobId}/chunks`: lists the chunks in the order of the request."""

    audited = CHANGES
    scopes = EXPORTS
    ordering = ("seq",)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        job = visible(request, self.kwargs["job_id"])
        chunks = Chunk.objects.filter(job=job)
        if status := chosen(request, "status", among=ChunkStatus.values):
            chunks = chunks.filter(status=status)
        page = self.paginate_queryset(chunks) or []
        return self.get_paginated_response(representation.chunks(job, page, user_of(request).pk))


class RetryExportView(APIView):
    """`POST /exports/{jobId}/retry`: retries the failed chunks. 409 unless the job has failed."""

    scopes = EXPORTS

    @extend_schema(
        operation_id="retryExport",
        **openapi.RETRY,
        request=None,
        responses={
            202: schemas.Job,
            **problems(BadInput, NotPermitted, AccessRemoved, NoSuchExport, actions.NotFailed, quotas.QuotaExceeded),
        },
    )
    def post(self, request: Request, job_id: UUID) -> Response:
        job = changeable(request, job_id)
        EmptyBody.read(request.data)
        with staff.recorded(request.user, job, "Over the API: retried."):
            actions.retry(job)
        return Response(representation.job(visible(request, job_id), request), status=202)


class CancelExportView(APIView):
    """`POST /exports/{jobId}/cancel`: cancels the job. 409 if it has ended."""

    scopes = EXPORTS

    @extend_schema(
        operation_id="cancelExport",
        **openapi.CANCEL,
        request=None,
        responses={200: schemas.Job, **problems(BadInput, NotPermitted, NoSuchExport, actions.AlreadyEnded)},
    )
    def post(self, request: Request, job_id: UUID) -> Response:
        job = changeable(request, job_id)
        EmptyBody.read(request.data)
        with staff.recorded(request.user, job, "Over the API: cancelled."):
            actions.cancel(job)
        return Response(representation.job(visible(request, job_id), request))


class ReplayExportView(APIView):
    """`POST /exports/{jobId}/replay`: submits the same request as a new job of this user."""

    scopes = EXPORTS

    @extend_schema(
        operation_id="replayExport",
        **openapi.REPLAY,
        request=None,
        responses={
            202: openapi.ACCEPTED,
            **problems(BadInput, NotPermitted, NoSuchExport, actions.NotReplayable, quotas.QuotaExceeded),
        },
    )
    def post(self, request: Request, job_id: UUID) -> Response:
        job = changeable(request, job_id)
        EmptyBody.read(request.data)
        with staff.recorded(request.user, job, "Over the API: replayed as an export of their own."):
            return accepted(*actions.replay(job, caller_of(request)))
