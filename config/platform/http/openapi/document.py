"""The API schema at `/api/schema`, generated once per process, because that takes 0.1 s and the path is public."""

import gzip
import hashlib
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

from django.http import HttpResponse
from django.utils.cache import get_conditional_response, patch_vary_headers
from django.utils.encoding import force_bytes
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import (
    OpenApiJsonRenderer,
    OpenApiJsonRenderer2,
    OpenApiYamlRenderer,
    OpenApiYamlRenderer2,
)
from drf_spectacular.views import SpectacularAPIView
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from config.platform.http.audit import NOTHING
from config.platform.http.responses import accepts_gzip
from config.platform.http.throttling import AddressThrottle

# drf-spectacular imports and patches modules while it generates a schema, which is not thread-safe.
schema_lock = threading.Lock()


class SchemaThrottle(AddressThrottle):
    """The rate limit of downloads by link, counted separately."""

    requests = "export_download_rate"

    def counted(self, request: Request) -> tuple[str, str]:
        name, address = super().counted(request)
        return name, f"schema:{address}"


class SchemaView(SpectacularAPIView):
    """`GET /api/schema`: JSON, or YAML if the Accept header asks for it. JSON is YAML, so every client can read it."""

    audited = NOTHING

    schema = None  # excludes this view from the schema
    renderer_classes: ClassVar = [  # type: ignore[misc]
        OpenApiJsonRenderer,
        OpenApiJsonRenderer2,
        OpenApiYamlRenderer,
        OpenApiYamlRenderer2,
    ]
    throttle_classes = (SchemaThrottle,)

    def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
        renderer: Callable[[], BaseRenderer] = type(request.accepted_renderer)
        is_gzip = accepts_gzip(request.headers.get("Accept-Encoding", ""))
        with schema_lock:
            content, etag = document(renderer, is_gzip=is_gzip)
        response = HttpResponse(content, content_type=request.accepted_renderer.media_type)
        response["ETag"], response["Cache-Control"] = etag, "no-cache"
        if is_gzip:
            response["Content-Encoding"] = "gzip"
        patch_vary_headers(response, ["Accept", "Accept-Encoding"])
        return get_conditional_response(request._request, etag=etag, response=response) or response


@cache
def document(renderer: Callable[[], BaseRenderer], *, is_gzip: bool) -> tuple[bytes, str]:
    """Return the schema in one format, plain or compressed, with its strong ETag."""
    content = bytes(force_bytes(renderer().render(schema(), renderer_context={})))
    content = gzip.compress(content, mtime=0) if is_gzip else content
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


@cache
def schema() -> Any:
    return SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
