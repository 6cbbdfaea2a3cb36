"""Building blocks for the responses of views in the schema: problems, links, headers, and examples.

`config.platform.http.openapi.autoschema` turns them into OpenAPI. Nothing here runs during a request.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse

from config.platform.http.problems import (
    CONTENT_TYPE,
    MAX_ERRORS,
    RETRY_AFTER_SECONDS,
    AuthenticationFailed,
    BadInput,
    BodyTooLarge,
    CSRFFailed,
    DatabaseUnavailable,
    DiskFull,
    InputError,
    NotAuthenticated,
    Problem,
    of_status,
)
from config.platform.http.scopes import InsufficientScope
from config.platform.http.second_factor import SecondFactorRequired
from config.platform.http.single_sign_on import ProviderUnavailable
from config.platform.http.throttling import RateLimited

REQUEST_ID = "5d3f2c4e-7a1b-4c7e-9e39-0f8f5c9f2a10"
PROBLEM_REF = {"$ref": "#/components/schemas/Problem"}
INPUT_ERROR = {
    "type": "object",
    "description": "An input error and its location.",
    "required": ["pointer", "code", "detail"],
    "properties": {
        "pointer": {
            "type": "string",
            "description": "RFC 6901 JSON Pointer into the body, or `/name` of a query parameter. Empty: the body.",
            "examples": ["/items/17/effectiveDate"],
        },
        "code": {
            "type": "string",
            "description": "Error code: `required`, `null`, `invalid`, `invalid_choice`, `read_only`, "
            "`unknown_field`, `max_length`, `max_value`, `empty`, `too_many_chunks`, … New codes may be added.",
            "examples": ["required"],
        },
        "detail": {"type": "string", "description": "Description for people."},
    },
}
PROBLEM = {
    "type": "object",
    "description": "An error as defined by RFC 9457. Programs should check `code`. Invalid input has `errors`.",
    "required": ["type", "title", "status", "detail", "code", "requestId"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference", "description": "`urn:problem:sluice:` and the code."},
        "title": {"type": "string", "description": "The name of the HTTP status."},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "Description for people: what happened and what to do."},
        "code": {"type": "string", "description": "Error code. Each response lists its possible codes."},
        "requestId": {
            "type": "string",
            "description": "Also sent as `X-Request-ID`. Include it when you report a problem.",
        },
        "errors": {
            "type": "array",
            "maxItems": MAX_ERRORS,
            "items": {"$ref": "#/components/schemas/InputError"},
            "description": f"The input errors that were found in one pass, at most {MAX_ERRORS}.",
        },
    },
}
EXAMPLE_ERROR = InputError(pointer="/name", code="unknown_field", detail="Unknown field.")

Meanings = Mapping[str, str]  # detail texts by problem code


# ---- Problems -------------------------------------------------------------------------------------------------------


class ProblemResponses(OpenApiResponse):
    """The documented problems of one status."""

    def __init__(self, meanings: Meanings) -> None:
        super().__init__(PROBLEM_REF)
        self.meanings = dict(meanings)


def problems(*kinds: type[Problem]) -> dict[tuple[int, str], ProblemResponses]:
    """Return the entries of these problems for `responses` of `extend_schema`.

    Common problems, such as those of authentication and rate limits, are added automatically.
    """
    return {(status, CONTENT_TYPE): ProblemResponses(meanings) for status, meanings in by_status(*kinds).items()}


def by_status(*kinds: type[Problem] | Problem) -> dict[int, dict[str, str]]:
    meanings: dict[int, dict[str, str]] = {}
    for kind in kinds:
        meanings.setdefault(kind.status, {})[kind.code] = kind.detail
    return meanings


# Responses that views share, by component name.
SHARED: dict[str, dict[int, dict[str, str]]] = {
    "BadRequest": by_status(BadInput),
    "Unauthorized": by_status(NotAuthenticated, AuthenticationFailed),
    "InsufficientScope": by_status(InsufficientScope, SecondFactorRequired),
    "InsufficientScopeOrCsrfFailed": by_status(InsufficientScope, SecondFactorRequired, CSRFFailed),
    "NotAcceptable": by_status(of_status(406)),
    "BodyTooLarge": by_status(BodyTooLarge),
    "UnsupportedMediaType": by_status(of_status(415)),
    "RateLimited": by_status(RateLimited),
    "InternalError": by_status(of_status(500)),
    "Unavailable": by_status(DatabaseUnavailable, ProviderUnavailable),
    "UnavailableToWrites": by_status(DatabaseUnavailable, DiskFull, ProviderUnavailable),
}


def describe_response(status: int, meanings: Meanings, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Response Object of a status, with its codes and an example of each.

    The codes are in an extension, because most client generators ignore or reject a `$ref` with sibling properties.
    """
    shown = {each["value"]["code"] for each in given.values()}
    made = {code: {"value": example(status, code, detail)} for code, detail in meanings.items() if code not in shown}
    examples = {**given, **made}
    headers = headers_of(status)
    return {
        "description": "\n".join(f"* `{code}`: {meaning}" for code, meaning in meanings.items()),
        **({"headers": headers} if headers else {}),
        "content": {CONTENT_TYPE: {"schema": PROBLEM_REF, "examples": examples, "x-codes": list(meanings)}},
    }


def example(status: int, code: str, detail: str) -> dict[str, Any]:
    shown = Problem(detail)
    shown.status, shown.code = status, code
    body = shown.body() | {"requestId": REQUEST_ID}
    if status == BadInput.status:
        error = InputError(pointer="/file", code=code, detail=detail) if code != BadInput.code else EXAMPLE_ERROR
        body["errors"] = [asdict(error)]
    return body


def headers_of(status: int) -> dict[str, Any]:
    """Return the headers that problems of a status always have."""
    if status in (429, 503):
        wait = {"type": "integer", "minimum": 0, "examples": [RETRY_AFTER_SECONDS]}
        about = "Seconds until the next attempt."
        return {"Retry-After": {"schema": wait, "description": about, "required": True}}
    if status == NotAuthenticated.status:
        return {"WWW-Authenticate": {"schema": {"type": "string", "pattern": "^Bearer"}, "required": True}}
    return {}


# ---- Responses with links -------------------------------------------------------------------------------------------


class LinkedResponse(OpenApiResponse):
    """A response with links to the next operations."""

    def __init__(self, shape: Any, about: str, **links: dict[str, Any]) -> None:
        super().__init__(shape, about)
        self.links = links


def file_response(media_type: str, about: str) -> dict[tuple[int, str], OpenApiResponse]:
    """Return the entry of a file that a redirect leads to, for clients that follow redirects."""
    return {(200, media_type): OpenApiResponse(OpenApiTypes.BINARY, about)}


def link_to(operation: str, about: str, **parameters: str) -> dict[str, Any]:
    """Return a Link Object. Parameters are expressions: `link_to("getExport", "…", jobId="$response.body#/jobId")`."""
    return {"operationId": operation, "description": about, "parameters": parameters}


# ---- Parameters and examples ----------------------------------------------------------------------------------------
IDEMPOTENCY_REPLAYED = OpenApiParameter(
    "Idempotency-Replayed",
    str,
    "header",
    response=[201, 202],
    enum=["true"],
    description="This is the response of an earlier request.",
)


def location(status: int, description: str) -> OpenApiParameter:
    return OpenApiParameter(
        "Location", OpenApiTypes.URI_REF, "header", required=True, response=[status], description=description
    )


def retry_after(status: int, resource: str, *, required: bool = False) -> OpenApiParameter:
    return OpenApiParameter(
        "Retry-After",
        int,
        "header",
        required=required,
        response=[status],
        description=f"Seconds until the next poll of the {resource}.{'' if required else ' Absent once it has ended.'}",
    )


def idempotency_key(description: str) -> OpenApiParameter:
    """Return the header. `description`: the lifetime of a key, and the definition of a repeated request."""
    return OpenApiParameter(
        "Idempotency-Key",
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        "header",
        description=f"1 to 255 visible ASCII characters, such as a UUID, {description}",
    )


def request_example(name: str, value: Any, about: str = "") -> OpenApiExample:
    return OpenApiExample(name, value, description=about, request_only=True)


def response_example(name: str, value: Any, *, status: int = 200, media_type: str | None = None) -> OpenApiExample:
    return OpenApiExample(name, value, response_only=True, status_codes=[str(status)], media_type=media_type)
