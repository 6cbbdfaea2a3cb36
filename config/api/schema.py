"""What drf-spectacular cannot find out by itself: our authentication, and that errors are problem+json."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema

from config.api.problems import CONTENT_TYPE

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
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


def add_problems(result: dict[str, Any], **_later: Any) -> dict[str, Any]:
    """Postprocessing hook: every operation may answer a problem; those that name a status keep their own words."""
    result.setdefault("components", {}).setdefault("schemas", {})["Problem"] = PROBLEM
    content = {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    answer = {"description": "A problem.", "content": content}
    for path in result.get("paths", {}).values():
        for method in METHODS:
            if method in path:
                path[method]["responses"].setdefault("default", answer)
    return result
