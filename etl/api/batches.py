"""API views of batches. Each translates the request, calls one function, and translates the result."""

from functools import partial
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest
from drf_spectacular.utils import extend_schema_view
from rest_framework import generics
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from config.platform.http import staff
from config.platform.http.audit import CHANGES
from config.platform.http.auth import user_of
from config.platform.http.idempotency import Idempotency, InFlight, KeyReused, replay_headers
from config.platform.http.openapi.responses import problems
from config.platform.http.parsers import JSONParser
from config.platform.http.problems import (
    BadInput,
    BodyTooLarge,
    NotFound,
    NotPermitted,
    StorageUnavailable,
    require_first,
)
from config.platform.http.request_context import request_id
from config.platform.http.serializers import EmptyBody
from etl.api import openapi
from etl.api.serializers import BatchFilesSerializer, BatchInput, BatchKeysSerializer, CancelSerializer
from etl.api.views import POLL_SECONDS, TaskAPIView
from etl.core.formats import HEAD_BYTES
from etl.ingest import acceptance, archive, batches, inbox, multipart, uploads
from etl.ingest.batches import Candidate
from etl.models import DocumentBatch
from etl.models.batch import DocumentBatchQuerySet
from etl.pipeline import actions, batch_actions, queue_limit, quotas, representation, schemas
from rules.library import catalog

SUBMIT_PROBLEMS = (
    BadInput, acceptance.BatchTooLarge, BodyTooLarge, InFlight, KeyReused, quotas.QuotaExceeded, queue_limit.QueueFull,
    StorageUnavailable, catalog.NoDefaultRule,
)  # fmt: skip


class NoSuchBatch(NotFound):
    detail = "Batch not found."


def visible_with_counts(batch_id: int, *, user: User) -> Any:
    """Return a batch with its counts. Raises NoSuchBatch, also if the user may not view it."""
    rows = DocumentBatch.objects.visible_to(user).with_counts()
    return require_first(rows.filter(pk=batch_id), NoSuchBatch)


def visible(batch_id: int, *, user: User) -> DocumentBatch:
    """Return a batch without its counts. Raises NoSuchBatch, also if the user may not view it."""
    return require_first(DocumentBatch.objects.visible_to(user).filter(pk=batch_id), NoSuchBatch)


def changeable(batch_id: int, *, user: User) -> DocumentBatch:
    """Return a batch to change. Raises NoSuchBatch, and NotPermitted if the user may only view it."""
    batch = visible(batch_id, user=user)
    staff.require_change(user, batch)
    return batch


# ---- Submission and list --------------------------------------------------------------------------------------------


def candidates_of(wanted: BatchInput, *, user_id: int) -> list[Candidate]:
    """Return the documents of a request. Raises BadInput if there are too many, or if the archive is damaged."""
    if wanted.prefix is not None:
        found = inbox.documents_below(wanted.prefix, user_id=user_id)
        return [Candidate(document, "/prefix", label=document.path) for document in found]
    if wanted.file_keys:
        acceptance.check_count(len(wanted.file_keys), pointer="/file_keys")
        return [
            Candidate(uploads.EarlierUpload(key, user_id=user_id), f"/file_keys/{number}", label=key)
            for number, key in enumerate(wanted.file_keys)
        ]
    if len(wanted.files) == 1:
        (file,) = wanted.files
        file.seek(0)  # the fingerprint for the idempotency key has read the file
        head = file.read(HEAD_BYTES)
        file.seek(0)
        if archive.is_archive(head) and not acceptance.is_document(head, name=file.name or ""):
            return [Candidate(document, "/file") for document in archive.documents_in(file)]
    acceptance.check_count(len(wanted.files), pointer="/file")
    return [Candidate(uploads.SentFile(file), f"/file/{number}") for number, file in enumerate(wanted.files)]


def identity_of(wanted: BatchInput) -> dict[str, Any]:
    """Return the values that must be the same when a request is repeated with its idempotency key."""
    files = [{"name": file.name, **uploads.SentFile(file).identity()} for file in wanted.files]
    part = {} if wanted.prefix is None else {"prefix": wanted.prefix}
    return {**wanted.options, "files": files, "file_keys": wanted.file_keys, **part}


@extend_schema_view(
    get=openapi.operation(
        operation_id="listBatches",
        **openapi.LIST_BATCHES,
        responses={200: list[schemas.BatchSummary], **problems(BadInput)},
    )
)
class BatchListView(TaskAPIView, generics.ListAPIView[DocumentBatch]):
    """`GET /batches`: the user's batches, newest first. `POST`: creates a batch from files, uploads, or the inbox."""

    audited = CHANGES
    parser_classes = (JSONParser, MultiPartParser)
    ordering = ("-created_at", "-batch_id")

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """Set the upload handler before the CSRF check reads the body."""
        if request.method == "POST":
            request.upload_handlers = [multipart.FilesInOne(request)]
        return super().initialize_request(request, *args, **kwargs)

    def get_queryset(self) -> DocumentBatchQuerySet:
        return DocumentBatch.objects.filter(user=user_of(self.request)).defer("refused").with_counts()

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(self.get_queryset()) or []
        return self.get_paginated_response([representation.batch(row) for row in page])

    @openapi.operation(
        operation_id="submitBatch",
        **openapi.SUBMIT_BATCH,
        request={"multipart/form-data": BatchFilesSerializer},
        responses={202: openapi.ACCEPTED_BATCH, **problems(*SUBMIT_PROBLEMS)},
    )
    def post(self, request: Request) -> Response:
        return submit(request)


class SubmitUploadedBatchView(TaskAPIView):
    """`POST /batches/uploaded`: creates a batch of earlier uploads, or of documents in the inbox."""

    @openapi.operation(
        operation_id="submitUploadedBatch",
        **openapi.SUBMIT_UPLOADED_BATCH,
        request=BatchKeysSerializer,
        responses={202: openapi.ACCEPTED_BATCH, **problems(*SUBMIT_PROBLEMS)},
    )
    def post(self, request: Request) -> Response:
        return submit(request)


def submit(request: Request) -> Response:
    wanted, user = BatchInput.of(request), user_of(request)
    batch, replayed = batches.submit(
        partial(candidates_of, wanted, user_id=user.pk),
        user=user,
        **wanted.options,
        request_id=request_id(request._request),
        idempotency=Idempotency.of(request, body=lambda: identity_of(wanted)),
    )
    headers = headers_of(batch.pk) | replay_headers(replayed=replayed)
    return Response(representation.accepted_batch(batch), status=202, headers=headers)


def headers_of(batch_id: int) -> dict[str, str]:
    return {"Location": representation.batch_path(batch_id), "Retry-After": str(POLL_SECONDS)}


# ---- One batch ------------------------------------------------------------------------------------------------------


class BatchView(TaskAPIView):
    """`GET /batches/{id}`."""

    audited = CHANGES

    @openapi.operation(
        operation_id="getBatch", **openapi.GET_BATCH, responses={200: schemas.Batch, **problems(NoSuchBatch)}
    )
    def get(self, request: Request, batch_id: int) -> Response:
        batch = visible_with_counts(batch_id, user=user_of(request))
        headers = {} if batch.has_ended else {"Retry-After": str(POLL_SECONDS)}
        return Response(
            {**representation.batch(batch), "refused": representation.refused_files(batch)}, headers=headers
        )


class CancelBatchView(TaskAPIView):
    """`POST /batches/{id}/cancel`: cancels the waiting documents, and with `force` also the running ones."""

    @openapi.operation(
        operation_id="cancelBatch",
        **openapi.CANCEL_BATCH,
        request=CancelSerializer,
        responses={
            200: schemas.BatchSummary,
            **problems(BadInput, NotPermitted, NoSuchBatch, batch_actions.NothingToCancel, actions.RunStateUnavailable),
        },
    )
    def post(self, request: Request, batch_id: int) -> Response:
        is_forced = CancelSerializer.read(request.data)["force"]
        batch = changeable(batch_id, user=user_of(request))
        with staff.recorded(request.user, batch, "Over the API: cancelled."):
            batch_actions.cancel(batch, is_forced=is_forced)
        return Response(representation.batch(visible_with_counts(batch_id, user=user_of(request))))


class RetryBatchView(TaskAPIView):
    """`POST /batches/{id}/retry`: runs the failed documents again."""

    @openapi.operation(
        operation_id="retryBatch",
        **openapi.RETRY_BATCH,
        request=None,
        responses={
            202: schemas.BatchSummary,
            **problems(
                BadInput,
                NotPermitted,
                NoSuchBatch,
                batch_actions.NothingToRetry,
                quotas.QuotaExceeded,
                queue_limit.QueueFull,
                actions.RunStateUnavailable,
                StorageUnavailable,
            ),
        },
    )
    def post(self, request: Request, batch_id: int) -> Response:
        EmptyBody.read(request.data)
        batch = changeable(batch_id, user=user_of(request))
        with staff.recorded(request.user, batch, "Over the API: retried the failed documents."):
            batch_actions.retry(batch)
        batch = visible_with_counts(batch_id, user=user_of(request))
        return Response(representation.batch(batch), status=202, headers=headers_of(batch_id))
