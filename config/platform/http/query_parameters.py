"""Rejection of unknown query parameters."""

from functools import cache
from typing import TYPE_CHECKING, Any

from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from config.platform.http.problems import MAX_ERRORS
from config.platform.http.serializers import MAX_NAME

if TYPE_CHECKING:  # DRF imports this module while it defines its views
    from rest_framework.views import APIView


class KnownParameters(BasePermission):
    """Permission class that raises ValidationError for a query parameter that is not in the schema of the operation.

    Otherwise, a misspelled filter would return all rows. A permission class runs after the authentication, and not for
    public views: other software may add parameters to the URLs of links and health checks.
    """

    def has_permission(self, request: Request, view: "APIView") -> bool:
        if not hasattr(view, str(request.method).lower()):
            return True  # 405
        known = parameters_of(type(view), str(request.method))  # type: ignore[arg-type]  # a class has a hash
        unknown = [name for name in request.query_params if name not in known]
        if unknown:
            error = [ErrorDetail("Unknown query parameter.", code="unknown_parameter")]
            raise ValidationError({name[:MAX_NAME]: error for name in unknown[:MAX_ERRORS]})
        return True


@cache
def parameters_of(view: type["APIView"], method: str) -> frozenset[str]:
    """Return the names of the query parameters of an operation, from `extend_schema` and the pagination."""
    name = "get" if method == "HEAD" else method.lower()
    names = [each.name for each in documented(view, name) if each.location == "query"]
    if name == "get" and (pagination := getattr(view, "pagination_class", None)):
        names += [each["name"] for each in pagination().get_schema_operation_parameters(view())]
    return frozenset(names)


def documented(view: type["APIView"], name: str) -> list[Any]:
    """Return the parameters that `extend_schema` has attached to a method."""
    schema = getattr(getattr(view, name, None), "kwargs", {}).get("schema")
    if schema is None:
        return []
    inspector = schema()
    inspector.view, inspector.method = view(request=None, kwargs={}), name.upper()
    found: list[Any] = inspector.get_override_parameters()
    return found
