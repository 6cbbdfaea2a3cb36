"""OpenAPI extensions of drf-spectacular: authentication, strict input, and the common error responses.

`Schema` is DRF's DEFAULT_SCHEMA_CLASS. It derives the responses about authentication, rates, bodies, and media types
from the attributes of a view, so that the schema cannot become outdated.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import Direction
from rest_framework.permissions import SAFE_METHODS

from config.platform.http import scopes
from config.platform.http.negotiation import WITHOUT_BODY, IgnoreAccept
from config.platform.http.openapi.response_schemas import as_serializer
from config.platform.http.openapi.responses import (
    INPUT_ERROR,
    PROBLEM,
    SHARED,
    LinkedResponse,
    Meanings,
    ProblemResponses,
    describe_response,
)
from config.platform.http.problems import CONTENT_TYPE, phrase

CSRF = {
    "type": "apiKey",
    "in": "header",
    "name": "X-CSRFToken",
    "description": "The value of the `csrftoken` cookie. Required with the session cookie for all methods except GET.",
}
SESSION = {
    "type": "apiKey",
    "in": "cookie",
    "name": "sessionid",
    "description": "Sent automatically by a signed-in browser. Leave this empty.",
}
BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token from your account page or from `manage.py issue_token`. It is valid for 90 days by "
    "default. Revoking it takes effect immediately.",
}


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "config.platform.http.auth.BearerAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return BEARER


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The session cookie and, for unsafe methods, the CSRF token."""

    target_class = "config.platform.http.auth.SessionAuthentication"
    name = ["session", "csrf"]

    def get_security_definition(self, auto_schema: AutoSchema) -> list[dict[str, Any]]:
        return [SESSION, CSRF]

    def get_security_requirement(self, auto_schema: AutoSchema) -> dict[str, list[str]]:
        names = self.name[:1] if auto_schema.method in SAFE_METHODS else self.name
        return {name: [] for name in names}


class StrictSchema(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """Schema of a StrictSerializer, which rejects unknown fields."""

    target_class = "config.platform.http.serializers.StrictSerializer"
    match_subclasses = True

    def get_name(self, auto_schema: AutoSchema, direction: Direction) -> str:
        """Return the name without "Request", because drf-spectacular appends it."""
        return type(self.target).__name__.removesuffix("Serializer").removesuffix("Request")

    def map_serializer(self, auto_schema: AutoSchema, direction: Direction) -> dict[str, Any]:
        own = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)  # type: ignore[no-untyped-call]
        schema: dict[str, Any] = dict(own)
        if type(self.target).__doc__ is None:
            schema.pop("description", None)  # the docstring of StrictSerializer is not meant for clients
        return {**schema, "additionalProperties": False} if direction == "request" else schema


class Schema(AutoSchema):
    """drf-spectacular's AutoSchema, with the error responses of each view."""

    def get_auth(self) -> list[Any]:
        """Make authentication optional for views without permission classes, and list the scopes of other views."""
        schemes: list[Any] = super().get_auth() if self.view.authentication_classes else []
        if not schemes or not self.view.get_permissions():
            return [{}, *schemes] if schemes else schemes
        needed = scopes.needed_by(self.view, self.method)
        limited = [{BearerScheme.name: [scope]} for scope in needed]
        return [scheme for each in schemes for scheme in (limited if limited and BearerScheme.name in each else [each])]

    def _get_request_body(self, direction: Direction = "request") -> dict[str, Any] | None:
        """Make the body optional only for PATCH, where all fields are optional."""
        body: dict[str, Any] | None = super()._get_request_body(direction)  # type: ignore[no-untyped-call]
        return {**body, "required": self.method != "PATCH"} if body else body

    def _get_response_for_code(self, serializer: Any, *rest: Any, **options: Any) -> dict[str, Any]:
        shape = as_serializer(serializer)
        body: dict[str, Any] = super()._get_response_for_code(shape, *rest, **options)  # type: ignore[no-untyped-call]
        return body

    def _get_request_for_media_type(self, serializer: Any, *rest: Any, **options: Any) -> Any:
        shape = as_serializer(serializer)
        return super()._get_request_for_media_type(shape, *rest, **options)  # type: ignore[no-untyped-call]

    def _get_response_bodies(self, direction: Direction = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        if direction == "request":  # a webhook: the receiver responds
            return bodies
        declared: Any = self.get_response_serializers()
        responses: Mapping[Any, Any] = declared if isinstance(declared, Mapping) else {}
        for status, response in responses.items():
            if isinstance(response, LinkedResponse):
                bodies[str(status)]["links"] = response.links
        own = {
            key[0]: response.meanings for key, response in responses.items() if isinstance(response, ProblemResponses)
        }
        given = {status: examples_in(bodies.get(str(status), {})) for status in own}
        for status, body in bodies.items():
            body["description"] = body["description"] or phrase(int(status))
        bodies.update({str(status): refusal for status, refusal in self.refusals(own, given).items()})
        return dict(sorted(bodies.items()))

    def refusals(self, own: Mapping[int, Meanings], given: Mapping[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Return the problems of this view, and the shared ones as references unless the view extends them."""
        responses = {status: describe_response(status, meanings, given[status]) for status, meanings in own.items()}
        for name in self.names_of_shared():
            ((status, meanings),) = SHARED[name].items()
            own_meanings = own.get(status, {})
            if own_meanings.items() <= meanings.items() and not given.get(status):
                responses[status] = {"$ref": f"#/components/responses/{name}"}
            else:
                responses[status] = describe_response(
                    status, {**own_meanings, **meanings, **own_meanings}, given.get(status, {})
                )
        return responses

    def names_of_shared(self) -> Iterator[str]:
        writes = self.method not in SAFE_METHODS
        yield from ("BadRequest", "InternalError")
        if self.view.authentication_classes:
            yield "Unauthorized"
            if self.view.get_permissions():
                yield "InsufficientScopeOrCsrfFailed" if writes else "InsufficientScope"
        if self.view.content_negotiation_class is not IgnoreAccept and self.method not in WITHOUT_BODY:
            yield "NotAcceptable"
        if writes:
            yield from ("BodyTooLarge", "UnsupportedMediaType")
        if self.view.throttle_classes:
            yield "RateLimited"
        if self.view.authentication_classes or self.view.throttle_classes:
            yield "UnavailableToWrites" if writes else "Unavailable"


def examples_in(response: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = response.get("content", {}).get(CONTENT_TYPE, {}).get("examples", {})
    return found


def add_shared_components(result: dict[str, Any], **_later: Any) -> dict[str, Any]:
    """Add the components that are referenced. A postprocessing hook of drf-spectacular."""
    components = result.setdefault("components", {})
    components.setdefault("schemas", {}).update(Problem=PROBLEM, InputError=INPUT_ERROR)
    components["responses"] = {
        name: describe_response(status, meanings, {})
        for name, shared in SHARED.items()
        for status, meanings in shared.items()
    }
    return result
