"""The HTTP interface of exports: translate, one call, translate back."""

from datetime import date
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpResponse, HttpResponseRedirect
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config import storage
from config.api import throttling
from config.api.addresses import client_address
from config.api.auth import user_of
from config.api.idempotency import REPLAYED, Idempotency, InFlight, KeyReused
from config.api.paging import chosen
from config.api.problems import CONTENT_TYPE, BadInput, NotFound, Problem, StorageUnavailable
from config.api.requests import request_id
from config.api.schema import problem, problems
from config.api.serializers import Nothing
from exports import control, files, links, operations, quotas, rates, representation, schemas, submission
from exports.models import Chunk, Dataset, Job, Receipt
from exports.serializers import ExportRequestSerializer
from exports.states import ChunkStatus, JobStatus

POLL_SECONDS = 2


@extend_schema_view(
    get=extend_schema(
        operation_id="listExports",
        **operations.LIST,
        responses={200: schemas.Job(many=True), **problems(BadInput)},
    )
)
class Exports(generics.ListAPIView[Job]):
    """`GET /exports`: my jobs, newest first. `POST /exports`: a new one."""

    ordering = ("-created_at", "-job_id")

    def get_queryset(self) -> QuerySet[Job]:
        jobs = representation.with_all(Job.objects.filter(user_id=user_of(self.request).pk))
        if status := chosen(self.request, "status", among=JobStatus.values):
            jobs = jobs.filter(status=status)
        if dataset := self.request.query_params.get("dataset"):
            jobs = jobs.filter(dataset__name=dataset)
        return jobs

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(self.get_queryset()) or []
        return self.get_paginated_response([representation.job(job, request) for job in page])

    @extend_schema(
        operation_id="createExport",
        **operations.CREATE,
        request=ExportRequestSerializer,
        responses={202: operations.ACCEPTED, **problems(BadInput, InFlight, KeyReused, quotas.QuotaExceeded)},
    )
    def post(self, request: Request) -> Response:
        """Accept a job and answer at once; its state is at `Location`. One (key, date) is one chunk and one file."""
        idempotency = Idempotency.of(request)
        made = submission.find(user_of(request).pk, idempotency) if idempotency else None
        if made:
            return accepted(made, replayed=True)
        wanted = ExportRequestSerializer.read(request.data)
        try:
            job = submission.submit(wanted, idempotency=idempotency, **requester(request))
        except submission.AlreadyMade as earlier:
            return accepted(earlier.job, replayed=True)
        return accepted(job)


def requester(request: Request) -> dict[str, Any]:
    """Who asks, as `submit` wants to know it."""
    return {
        "user_id": user_of(request).pk,
        "request_id": request_id(request._request),
        "client": client_of(request),
    }


def accepted(job: Job, *, replayed: bool = False) -> Response:
    """The answer to whoever made a job, or made it before under the same Idempotency-Key: byte for byte the same."""
    headers = {"Location": f"/exports/{job.job_id}", "Retry-After": str(POLL_SECONDS)}
    if replayed:
        headers[REPLAYED] = "true"
    return Response(representation.accepted(job), status=202, headers=headers)


class Preview(APIView):
    """`POST /exports/preview`: what the same request to `/exports` would do. Changes nothing."""

    @extend_schema(
        operation_id="previewExport",
        **operations.PREVIEW,
        request=ExportRequestSerializer,
        responses={200: schemas.Preview, **problems(BadInput)},
    )
    def post(self, request: Request) -> Response:
        preview = submission.preview(ExportRequestSerializer.read(request.data))
        return Response(representation.preview(preview))


class Limits(APIView):
    """`GET /exports/limits`: the day's quota and what is left of it, and the other bounds."""

    @extend_schema(operation_id="getLimits", **operations.LIMITS, responses=schemas.Limits)
    def get(self, request: Request) -> Response:
        return Response(representation.limits(quotas.state(user_of(request).pk)))


class Datasets(APIView):
    """`GET /exports/datasets`: what can be exported."""

    @extend_schema(operation_id="listDatasets", **operations.DATASETS, responses=schemas.Datasets)
    def get(self, request: Request) -> Response:
        datasets = Dataset.objects.order_by("name")
        return Response(
            {
                "results": [
                    {
                        "name": each.name,
                        "schemaVersion": each.schema_version,
                        "formats": each.formats,
                        "keyPattern": each.key_pattern,
                    }
                    for each in datasets
                ],
                "next": None,
                "previous": None,
            }
        )


class NoSuchExport(NotFound):
    """There is no such export."""


def owned(request: Request, job_id: UUID, *, by_staff: bool = True) -> Job:
    """Return the job if the user may see it. A stranger's looks like one that is not there.

    Staff see every job, but what leads to its data, links and files, is the owner's alone.
    """
    user = user_of(request)
    job = representation.find(job_id, user_id=user.pk, of_anybody=by_staff and user.is_staff)
    if job is None:
        raise NoSuchExport
    return job


class Export(APIView):
    """`GET /exports/{jobId}`: always 200 for a job that is there; its state is in the body."""

    @extend_schema(
        operation_id="getExport",
        **operations.GET,
        responses={200: operations.ONE, **problems(NoSuchExport)},
    )
    def get(self, request: Request, job_id: UUID) -> Response:
        job = owned(request, job_id)
        headers = {} if job.has_ended else {"Retry-After": str(POLL_SECONDS)}
        return Response(representation.job(job, request), headers=headers)


@extend_schema_view(
    get=extend_schema(
        operation_id="listChunks",
        **operations.CHUNKS,
        responses={200: schemas.Chunk(many=True), **problems(BadInput, NoSuchExport)},
    )
)
class Chunks(generics.ListAPIView[Chunk]):
    """`GET /exports/{jobId}/chunks`: in the order of the request."""

    ordering = ("seq",)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        chunks = Chunk.objects.filter(job=owned(request, self.kwargs["job_id"]))
        if status := chosen(request, "status", among=ChunkStatus.values):
            chunks = chunks.filter(status=status)
        page = self.paginate_queryset(chunks) or []
        return self.get_paginated_response([representation.chunk(chunk) for chunk in page])


class Retry(APIView):
    """`POST /exports/{jobId}/retry`: the failed chunks again; 409 unless the job failed."""

    @extend_schema(
        operation_id="retryExport",
        **operations.RETRY,
        request=None,
        responses={202: schemas.Job, **problems(BadInput, NoSuchExport, control.NotFailed, quotas.QuotaExceeded)},
    )
    def post(self, request: Request, job_id: UUID) -> Response:
        job = owned(request, job_id)
        Nothing.read(request.data)
        control.retry(job)
        return Response(representation.job(owned(request, job_id), request), status=202)


class Cancel(APIView):
    """`POST /exports/{jobId}/cancel`: end it; 409 when it has ended."""

    @extend_schema(
        operation_id="cancelExport",
        **operations.CANCEL,
        request=None,
        responses={200: schemas.Job, **problems(BadInput, NoSuchExport, control.AlreadyEnded)},
    )
    def post(self, request: Request, job_id: UUID) -> Response:
        job = owned(request, job_id)
        Nothing.read(request.data)
        control.cancel(job)
        return Response(representation.job(owned(request, job_id), request))


class Replay(APIView):
    """`POST /exports/{jobId}/replay`: the same request once more, as a new job of whoever asks."""

    @extend_schema(
        operation_id="replayExport",
        **operations.REPLAY,
        request=None,
        responses={
            202: operations.ACCEPTED,
            **problems(BadInput, NoSuchExport, control.NotReplayable, quotas.QuotaExceeded),
        },
    )
    def post(self, request: Request, job_id: UUID) -> Response:
        job = owned(request, job_id)
        Nothing.read(request.data)
        return accepted(control.replay(job, **requester(request)))


class NotReady(Problem):
    """The export has no receipt yet: it has not ended, or it did not succeed."""

    status = 409
    code = "not_ready"


class FreshLink(APIView):
    """`POST /exports/{jobId}/link`: a new one-time link; the one before is revoked."""

    @extend_schema(
        operation_id="createLink",
        **operations.LINK,
        request=None,
        responses={200: schemas.OneTimeLink, **problems(BadInput, NoSuchExport, NotReady, links.ReceiptExpired)},
    )
    def post(self, request: Request, job_id: UUID) -> Response:
        job = owned(request, job_id, by_staff=False)
        Nothing.read(request.data)
        if job.status != JobStatus.SUCCESS:
            raise NotReady
        link = links.mint(job.receipt, links.bound_to(client_of(request)))
        url = request.build_absolute_uri(links.path_of(link))
        return Response({"signedUrl": url, "expiresAt": job.receipt.expires_at})


# What must not be kept, passed on in a Referer, or guessed at by a browser.
NO_TRACE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}


class LinkRefused(Problem):
    """This link cannot be used."""

    status = 403
    headers = NO_TRACE

    WHY = {
        "link_invalid": "This is not a link of ours, or it was changed.",
        "link_expired": "The link's time is over. Export again: files that are there already are reused.",
        "link_revoked": "The link was replaced by a newer one, or revoked.",
        "link_mismatch": "The link is for the client that made the export, or the link: its network and its User-Agent."
        " The owner can make one for another client by asking for it from there.",
        "link_used": "The link was used already; it works once. The owner can make a new one while the receipt lives.",
    }

    def __init__(self, refusal: links.Refused) -> None:
        super().__init__(self.WHY.get(refusal.outcome))
        self.code = refusal.outcome


class Download(APIView):
    """`GET /exports/{jobId}/download?token=…`: uses the link up and redirects to the object. HEAD uses nothing up."""

    authentication_classes = ()
    permission_classes = (AllowAny,)
    throttle_classes = (rates.PerAddress,)

    @extend_schema(
        operation_id="download",
        **operations.DOWNLOAD,
        responses={
            204: OpenApiResponse(description="To a prefetch, which uses nothing up."),
            302: OpenApiResponse(description="To the object."),
            (403, CONTENT_TYPE): problem(LinkRefused.WHY),
            **problems(NotFound, throttling.RateLimited),
        },
    )
    def get(self, request: Request, job_id: UUID) -> HttpResponse:
        if is_prefetch(request):
            self.peek(request, job_id)
            return HttpResponse(status=204, headers=NO_TRACE)
        try:
            url = links.redeem(job_id, token_of(request), client_of(request))
        except links.Refused as refusal:
            raise LinkRefused(refusal) from None
        return HttpResponseRedirect(url, headers=NO_TRACE)

    def head(self, request: Request, job_id: UUID) -> HttpResponse:
        receipt = self.peek(request, job_id)
        return HttpResponse(
            content_type=receipt.content_type,
            headers={
                **NO_TRACE,
                "Content-Length": str(receipt.size_bytes),
                "Content-Disposition": storage.content_disposition(receipt.file_name),
            },
        )

    def peek(self, request: Request, job_id: UUID) -> Receipt:
        try:
            return links.peek(job_id, token_of(request), client_of(request))
        except links.Refused as refusal:
            raise LinkRefused(refusal) from None


def token_of(request: Request) -> str:
    return str(request.query_params.get("token", ""))


def is_prefetch(request: Request) -> bool:
    return any("prefetch" in request.headers.get(name, "").lower() for name in ("Sec-Purpose", "Purpose"))


def client_of(request: Request) -> links.Client:
    address = client_address(request)
    return links.Client(address=str(address) if address else None, user_agent=request.headers.get("User-Agent", ""))


class File(APIView):
    """`GET /exports/{jobId}/files/{key}/{effectiveDate}`: one file of a manifest, for its owner, by redirect."""

    @extend_schema(
        operation_id="getFile",
        **operations.FILE,
        responses={
            302: OpenApiResponse(description="To the file."),
            **problems(NoSuchExport, links.ReceiptExpired, files.FileSuperseded, StorageUnavailable),
        },
    )
    def get(self, request: Request, job_id: UUID, key: str, effective_date: date) -> HttpResponse:
        url = files.presign(owned(request, job_id, by_staff=False), key=key, effective_date=effective_date)
        return HttpResponseRedirect(url, headers=NO_TRACE)
