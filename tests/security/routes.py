"""All routes of the service, from the URL resolver, so that tests include new routes automatically."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

UNSAFE = ("post", "put", "patch", "delete")
SAFE = ("get", "head")
FALLBACK = "app/<path:rest>"  # the 404 page
LINK_ROUTE = "exports/<uuid:job_id>/download"  # any client with a link can use it
PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>|\(\?P<(\w+)>[^)]*\)")


@dataclass(frozen=True)
class Route:
    path: str  # such as `exports/<uuid:job_id>/chunks`
    view: Any

    @property
    def names(self) -> set[str]:
        """Return the names of the path parameters."""
        return {one or other for one, other in PARAMETER.findall(self.path)}

    @property
    def methods(self) -> set[str]:
        """Return the HTTP methods that the view accepts. For a view function, assume GET and POST."""
        view = self.view_class
        if view is None:
            return {"get", "post"}
        return {name for name in (*SAFE, *UNSAFE) if name in view.http_method_names and hasattr(view, name)}

    @property
    def view_class(self) -> Any:
        """The class of the view, or None for a view function."""
        return getattr(self.view, "view_class", None) or getattr(self.view, "cls", None)

    @property
    def is_page(self) -> bool:
        return self.path.startswith(("app/", "admin/"))

    @property
    def is_admin(self) -> bool:
        return self.path.startswith("admin/")

    def filled(self, values: Mapping[str, Any]) -> str:
        """Return the path with values for its parameters. Raises KeyError for an unknown parameter."""
        path = PARAMETER.sub(lambda match: str(values[match[1] or match[2]]), self.path)
        return "/" + re.sub(r"[\^$]|\\Z", "", path)

    def __str__(self) -> str:
        return f"/{self.path}"


def required_query(path: str) -> dict[str, int]:
    """Return values for the required query parameters of a path."""
    return {"a": 1, "b": 1} if path.endswith("/compare") else {}


def walk(patterns: list[URLPattern | URLResolver], before: str = "") -> Iterator[Route]:
    for pattern in patterns:
        path = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from walk(pattern.url_patterns, path)
        elif path != FALLBACK:
            yield Route(path, pattern.callback)


ROUTES = list(walk(get_resolver().url_patterns))
OWNED_ROUTES = [route for route in ROUTES if route.names and not route.is_admin]
ADMIN_ROUTES = [route for route in ROUTES if route.is_admin]
