"""What drf-spectacular cannot find out by itself: authentication, strict input, and that errors are problem+json."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import Direction, OpenApiResponse

from config.api.problems import CONTENT_TYPE, NotAuthenticated, Problem
from config.api.throttling import RateLimited

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
PROBLEM_REF = {"$ref": "#/components/schemas/Problem"}
PROBLEM = {
    "type": "object",
    "description": "RFC 9457. `code` is what programs switch on; `errors` is there for bad input.",
    "required": ["type", "title", "status", "detail", "code", "requestId"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "requestId": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "code", "detail"],
                "properties": {
                    "pointer": {"type": "string", "description": "RFC 6901 JSON Pointer", "example": "/items/17/key"},
                    "code": {"type": "string"},
                    "detail": {"type": "string"},
                },
            },
        },
    },
}


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "config.api.auth.BearerAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "From `manage.py issue_token`."}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "config.api.auth.SessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid", "description": "Writes want X-CSRFToken too."}


class StrictSchema(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """A StrictSerializer takes no other fields than its own."""

    target_class = "config.api.serializers.StrictSerializer"
    match_subclasses = True

    def get_name(self, auto_schema: AutoSchema, direction: Direction) -> str:
        """Return ExportRequest's name without the Request that drf-spectacular adds, so that it has it once."""
        return type(self.target).__name__.removesuffix("Serializer").removesuffix("Request")

    def map_serializer(self, auto_schema: AutoSchema, direction: Direction) -> dict[str, Any]:
        own = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)  # type: ignore[no-untyped-call]
        schema: dict[str, Any] = dict(own)
        if type(self.target).__doc__ is None:
            schema.pop("description", None)  # StrictSerializer's own, which is not for clients
        return {**schema, "additionalProperties": False} if direction == "request" else schema


def problems(*kinds: type[Problem]) -> dict[tuple[int, str], OpenApiResponse]:
    """Return what these problems add to the `responses` of `extend_schema`: statuses, codes and their own words."""
    meanings: dict[int, dict[str, str]] = defaultdict(dict)
    for kind in kinds:
        meanings[kind.status][kind.code] = kind.said()
    if RateLimited.status in meanings:  # who has a 429 of its own has a rate, too
        meanings[RateLimited.status][RateLimited.code] = RateLimited.said()
    return {(status, CONTENT_TYPE): problem(codes) for status, codes in meanings.items()}


def problem(codes: Mapping[str, str]) -> OpenApiResponse:
    """Return the response of one status, from its codes and what they mean."""
    schema = {**PROBLEM_REF, "properties": {"code": {"enum": list(codes)}}}
    return OpenApiResponse(schema, "\n".join(f"* `{code}`: {meaning}" for code, meaning in codes.items()))


def add_problems(result: dict[str, Any], **_later: Any) -> dict[str, Any]:
    """Postprocessing hook: every operation may answer a problem; those that name a status keep their own words."""
    result.setdefault("components", {}).setdefault("schemas", {})["Problem"] = PROBLEM
    content = {CONTENT_TYPE: {"schema": PROBLEM_REF}}
    retry_after = {"schema": {"type": "integer"}, "description": "Seconds; always there with 429 and 503."}
    answer = {"description": "A problem.", "headers": {"Retry-After": retry_after}, "content": content}
    stranger = {"description": NotAuthenticated.said(), "content": content}
    hasty = {**answer, "description": RateLimited.said()}
    for path in result.get("paths", {}).values():
        for method in METHODS:
            if method in path:
                responses = path[method]["responses"]
                if {} not in path[method].get("security", [{}]):
                    responses.setdefault("401", stranger)
                    if "operations" not in path[method]["tags"]:
                        responses.setdefault("429", hasty)
                responses.setdefault("default", answer)
    return result
