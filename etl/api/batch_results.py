"""API view of the results of a batch in one file."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.util import FileWrapper

from django.core.handlers.asgi import ASGIRequest
from django.db import connection
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse
from rest_framework.request import Request

from config.platform import storage
from config.platform.http import staff
from config.platform.http.audit import OPENS_DATA
from config.platform.http.auth import user_of
from config.platform.http.negotiation import IgnoreAccept
from config.platform.http.openapi.responses import problems
from config.platform.http.paging import chosen, refusal
from config.platform.http.pointers import tokens
from config.platform.http.problems import BadInput, DiskFull, Problem
from etl.api import openapi
from etl.api.batches import NoSuchBatch, visible
from etl.api.markdown import ThreadedBlocks
from etl.api.serializers import read_flag
from etl.api.views import TaskAPIView
from etl.models import DocumentBatch, Task
from etl.pipeline import result_files
from etl.pipeline.result_files import FORMATS, ResultLayout

BLOCK = 256 * 1024
AT_ONCE = 2  # files that a process builds at the same time, because each needs a CPU
MAX_POINTER = 500
building = threading.BoundedSemaphore(AT_ONCE)
FILE = OpenApiResponse(OpenApiTypes.BINARY, "The results.")


class TooManyDownloads(Problem):
    status = 503
    code = "too_many_downloads"
    detail = (
        f"This server process is already preparing {AT_ONCE} downloads, which is its limit. Try again in a few seconds."
    )


class BatchResultsView(TaskAPIView):
    """`GET /batches/{id}/results`."""

    audited = OPENS_DATA
    content_negotiation_class = IgnoreAccept

    @openapi.operation(
        operation_id="getBatchResults",
        **openapi.BATCH_RESULTS,
        responses={
            **{(200, media_type.partition(";")[0]): FILE for media_type in FORMATS.values()},
            **problems(BadInput, NoSuchBatch, result_files.TooManyColumns, TooManyDownloads, DiskFull),
        },
    )
    def get(self, request: Request, batch_id: int) -> HttpResponseBase:
        user = user_of(request)
        batch, layout = visible(batch_id, user=user), layout_of(request)
        return results(batch, layout, request, user=user, message="Over the API: downloaded the results.")


def layout_of(request: Request) -> ResultLayout:
    """Read the query parameters. Raises ValidationError at the parameter."""
    return ResultLayout(
        format=chosen(request, "format", among=FORMATS) or "jsonl",
        rows=pointer_of(request.query_params.get("rows")),
        escapes_formulas=chosen(request, "formula_policy", among=("none", "escape")) == "escape",
        bom=read_flag(request, "bom"),
    )


def pointer_of(text: str | None) -> tuple[str, ...] | None:
    """Return the tokens of a JSON Pointer (RFC 6901), or None without one. Raises ValidationError."""
    if text is None:
        return None
    if (text and not text.startswith("/")) or len(text) > MAX_POINTER:
        raise refusal("rows", "Must be a JSON Pointer such as /items.")
    return tuple(tokens(text))


def results(
    batch: DocumentBatch, layout: ResultLayout, request: Request, *, user: Any, message: str
) -> HttpResponseBase:
    """Return a response with the file. Raises NotPermitted, TooManyColumns, TooManyDownloads, and DiskFull."""
    staff.record_access(user, batch, message)
    with limited():
        file = result_files.build(Task.objects.filter(batch_id=batch.pk).order_by("pk"), layout).content
    connection.close()  # a slow client must not occupy a database connection
    size = os.fstat(file.fileno()).st_size
    headers = {
        "Content-Length": str(size),
        "Content-Disposition": storage.content_disposition(f"{batch.title}.{layout.format}"),
        "Cache-Control": "no-store",
    }
    content_type = FORMATS[layout.format]
    if request.method == "HEAD":
        file.close()
        return HttpResponse(content_type=content_type, headers=headers)
    blocks = FileWrapper(file, BLOCK)  # Django calls its `close`
    parts = ThreadedBlocks(blocks) if isinstance(request._request, ASGIRequest) else blocks
    return StreamingHttpResponse(parts, content_type=content_type, headers=headers)


@contextmanager
def limited() -> Iterator[None]:
    """Raise TooManyDownloads if AT_ONCE files are being built."""
    if not building.acquire(blocking=False):
        raise TooManyDownloads
    try:
        yield
    finally:
        building.release()
