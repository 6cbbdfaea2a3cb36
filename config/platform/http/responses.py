"""Headers and compression of the API's JSON responses (RFC 9110, RFC 9111)."""

import gzip
from collections.abc import Callable
from contextlib import suppress

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.utils.http import parse_header_parameters

Respond = Callable[[HttpRequest], HttpResponseBase]

# For a response with a secret, such as a one-time link. `no-transform` also keeps proxies from compressing it.
SECRET = {"Cache-Control": "no-store, no-transform"}
MIN_BYTES = 1024  # compressing less saves no network packet


def middleware(get_response: Respond) -> Respond:
    """Set `Cache-Control: no-store` on JSON, unless the view set another value, and compress it if that is safe."""

    def respond(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        if isinstance(response, HttpResponse) and response.get("Content-Type", "").startswith("application/json"):
            response.setdefault("Cache-Control", "no-store")
            if may_compress(request, response):
                patch_vary_headers(response, ["Accept-Encoding"])
                if accepts_gzip(request.headers.get("Accept-Encoding", "")):
                    compress(response)
        return response

    return respond


def may_compress(request: HttpRequest, response: HttpResponse) -> bool:
    """Return whether the body may be compressed.

    The size of a compressed body can reveal a secret in it to an attacker who sends many requests as the user (BREACH).
    Another site can make a browser send its cookies, but not an Authorization header. An ETag identifies the sent
    bytes, and `If-Match` needs the ETag of the uncompressed body.
    """
    return (
        len(response.content) >= MIN_BYTES
        and "Authorization" in request.headers
        and "no-transform" not in response["Cache-Control"]
        and not response.has_header("Content-Encoding")
        and not response.has_header("ETag")
    )


def accepts_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding allows gzip (RFC 9110, 12.5.3)."""
    weights = {}
    for part in header.split(","):
        with suppress(TypeError, ValueError):  # parameters may be malformed
            name, parameters = parse_header_parameters(part)
            weights[name] = float(parameters.get("q", 1))
    return weights.get("gzip", weights.get("*", 0)) > 0


def compress(response: HttpResponse) -> None:
    response.content = gzip.compress(response.content, compresslevel=6, mtime=0)
    response["Content-Encoding"] = "gzip"
    response["Content-Length"] = str(len(response.content))
