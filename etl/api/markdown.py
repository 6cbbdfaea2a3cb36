"""API view of a task's Markdown, streamed from object storage."""

from collections.abc import AsyncIterator, Iterator
from wsgiref.util import FileWrapper

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import get_conditional_response
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse
from rest_framework.request import Request

from config.platform import storage
from config.platform.http.audit import OPENS_DATA
from config.platform.http.auth import user_of
from config.platform.http.negotiation import IgnoreAccept
from config.platform.http.openapi.responses import problems
from config.platform.http.problems import Problem, StorageUnavailable
from etl.api import lookup, openapi
from etl.api.views import TaskAPIView, visible
from etl.ingest import acceptance
from etl.pipeline import actions
from etl.pipeline.artifacts import MARKDOWN


class NotReady(Problem):
    status = 409
    code = "not_ready"
    detail = "The document has no Markdown yet: OCR has not ended, or it failed."


class MarkdownView(TaskAPIView):
    """`GET /tasks/{id}/markdown`."""

    audited = OPENS_DATA
    content_negotiation_class = IgnoreAccept

    @openapi.operation(
        operation_id="getMarkdown",
        **openapi.MARKDOWN,
        responses={
            (200, "text/markdown"): OpenApiResponse(
                OpenApiTypes.STR, "A line `<!-- page: 3 -->` precedes each page. The content is untrusted."
            ),
            304: OpenApiResponse(description="`If-None-Match` matches: the content has not changed."),
            **problems(actions.NoSuchTask, NotReady, actions.OcrResultMissing, StorageUnavailable),
        },
    )
    def get(self, request: Request, task_id: int) -> HttpResponseBase:
        state = visible(request, task_id)
        key = state.markdown_key
        if not key:
            raise NotReady
        lookup.record_access(state, user=user_of(request), message="Over the API: opened the Markdown.")
        return conditional_response(key, request, content_type=MARKDOWN)


def conditional_response(key: str, request: Request, *, content_type: str) -> HttpResponseBase:
    """Return a response with an artifact, or 304 if the client has it. Its key contains the hash of its content.

    Raises OcrResultMissing and StorageUnavailable.
    """
    etag = f'"{key.rpartition("/")[2].partition(".")[0]}"'
    unchanged = get_conditional_response(request._request, etag=etag)
    response = unchanged or stream_artifact(key, request, content_type=content_type)
    response["ETag"] = etag
    return response


def stream_artifact(key: str, request: Request, *, content_type: str = MARKDOWN) -> HttpResponseBase:
    """Return a response with a stored artifact. Raises OcrResultMissing and StorageUnavailable."""
    with acceptance.translate_storage_errors():
        found = storage.head(key)
        if found is None:
            raise actions.OcrResultMissing
        headers = {"Content-Length": str(found.size)}
        if request.method == "HEAD":
            return HttpResponse(content_type=content_type, headers=headers)
        blocks = storage.read(key, if_match=found.etag)  # Django calls its `close`
    parts = ThreadedBlocks(blocks) if isinstance(request._request, ASGIRequest) else blocks
    return StreamingHttpResponse(parts, content_type=content_type, headers=headers)


class ThreadedBlocks:
    """Async iterator over blocks of an object or a file.

    Threads wait for the blocks, so the event loop is not blocked. Django would read a synchronous iterator completely
    before sending it.
    """

    def __init__(self, blocks: storage.Blocks | FileWrapper) -> None:
        self.blocks = blocks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while block := await sync_to_async(next_block)(self.blocks):
            yield block

    def close(self) -> None:
        self.blocks.close()


def next_block(blocks: Iterator[bytes]) -> bytes:
    return next(blocks, b"")
