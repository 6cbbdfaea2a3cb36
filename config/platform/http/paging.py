"""Cursor pagination of lists, `{"results", "next", "previous"}`, and validation of query parameters."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.core import signing
from django.db.models import Field, Model, Q, QuerySet
from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import remove_query_param, replace_query_param

if TYPE_CHECKING:  # DRF imports this module while it defines its views
    from rest_framework.views import APIView

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
PAGE_BYTES = 1024**2  # for views with `row_bytes`; parsed JSON takes about forty times as much memory
MAX_NUMBER = 10**18 - 1  # fits into a bigint
CURSOR = "cursor"
LIMIT = "limit"


def chosen(request: Request, name: str, *, among: Collection[str]) -> str | None:
    """Return the value of a query parameter, or None without it. Raises ValidationError at `/name` for other values."""
    value: str | None = request.query_params.get(name)
    return None if value is None else require_choice(name, value, among=among)


def require_choice(name: str, text: str, *, among: Collection[str]) -> str:
    """Return the text of a query parameter. Raises ValidationError at `/name` for other values."""
    if text not in among:
        raise refusal(name, f"Must be one of: {', '.join(sorted(among))}.", code="invalid_choice")
    return text


def whole_number(text: str, *, maximum: int = MAX_NUMBER) -> int | None:
    """Return the number from 0 to `maximum` in a query, header, or form field, or None if it is invalid."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(maximum))
    return int(text) if is_number and int(text) <= maximum else None


def refusal(name: str, detail: str, *, code: str = "invalid") -> ValidationError:
    return ValidationError({name: [ErrorDetail(detail, code=code)]})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A position in a list, and the direction to read from there."""

    backwards: bool
    position: tuple[Any, ...]


class NewestFirst(BasePagination):
    """Pagination by `?cursor=` and `?limit=` (1 to 200, default 50). Raises ValidationError for invalid values.

    The order is the view's `ordering`, by default newest first. Its fields are not null and belong to the model; the
    primary key is added if it is missing. A position has the values of *all* fields. DRF's CursorPagination compares
    only the first field and counts offsets among equal values. It skips or repeats rows that were created at the same
    time, as by bulk inserts, and fails after 1,000 of them. With this class, added or deleted rows do not shift pages.

    A page with large rows is shorter than its limit. The view's `row_bytes` returns the size of a row.

    Cursors are signed, so that clients cannot send values that the database rejects, or the cursor of another list.
    """

    ordering: tuple[str, ...] = ("-created_at", "-pk")
    next_link: str | None = None
    previous_link: str | None = None

    def paginate_queryset(
        self, queryset: QuerySet[Any] | Sequence[Any], request: Request, view: "APIView | None" = None
    ) -> list[Any]:
        if not isinstance(queryset, QuerySet):
            raise TypeError("Only querysets can be paginated.")
        order = Order(queryset.model, getattr(view, "ordering", None) or self.ordering)
        limit, cursor = read_limit(request), order.read(request)
        backwards = cursor is not None and cursor.backwards
        page, more = read_page(order.window(queryset, cursor), limit, getattr(view, "row_bytes", None))
        if backwards:
            page.reverse()
        after, before = (True, more) if backwards else (more, cursor is not None)
        self.next_link = self.link(request, order, page[-1:], backwards=False) if after else None
        self.previous_link = self.link(request, order, page[:1], backwards=True) if before else None
        return page

    def link(self, request: Request, order: "Order", edge: list[Any], *, backwards: bool) -> str:
        """Return the full URL of the page beyond the edge row, or of the first page if there are no rows left."""
        here = request.build_absolute_uri()
        if not edge:
            return remove_query_param(here, CURSOR)
        return replace_query_param(here, CURSOR, order.write(edge[0], backwards=backwards))

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"results": data, "next": self.next_link, "previous": self.previous_link})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        link = {"type": ["string", "null"], "format": "uri", "example": None}
        older = {**link, "description": "Full URL of the next page, or null on the last page. Use it unchanged."}
        newer = {**link, "description": "Full URL of the previous page, or null on the first page."}
        return {
            "type": "object",
            "required": ["results", "next", "previous"],
            "properties": {"results": schema, "next": older, "previous": newer},
        }

    def get_schema_operation_parameters(self, view: "APIView") -> list[dict[str, Any]]:
        cursor = {"type": "string"}
        limit = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
        parameters = (
            (CURSOR, cursor, "Position of the page. Part of the URLs in `next` and `previous`."),
            (LIMIT, limit, "Rows per page at most. A page of large rows is shorter."),
        )
        return [
            {"name": name, "in": "query", "required": False, "schema": shape, "description": about}
            for name, shape, about in parameters
        ]


class Order:
    """A total order of a model's rows, and its cursors."""

    def __init__(self, model: type[Model], names: Iterable[str]) -> None:
        self.names = with_tie_break(model, tuple(names))
        self.fields = [field_of(model, name.lstrip("-")) for name in self.names]
        # A cursor is valid only for one model and order.
        self.salt = ":".join(("cursor", model._meta.label, *self.names))

    def window(self, rows: QuerySet[Any], cursor: Cursor | None) -> QuerySet[Any]:
        """Return the rows beyond the cursor, starting with the nearest row."""
        if cursor is None:
            return rows.order_by(*self.names)
        names = [reverse(name) for name in self.names] if cursor.backwards else self.names
        return rows.filter(beyond(list(names), list(cursor.position))).order_by(*names)

    def write(self, row: Model, *, backwards: bool) -> str:
        return signing.dumps([backwards, *(field.value_to_string(row) for field in self.fields)], salt=self.salt)

    def read(self, request: Request) -> Cursor | None:
        text = request.query_params.get(CURSOR)
        if text is None:
            return None
        try:
            backwards, *position = signing.loads(text, salt=self.salt)
        except signing.BadSignature:
            raise refusal(CURSOR, "Invalid cursor for this list. Use the URLs in `next` and `previous`.") from None
        values = (field.to_python(value) for field, value in zip(self.fields, position, strict=True))
        return Cursor(backwards=backwards, position=tuple(values))


def with_tie_break(model: type[Model], names: tuple[str, ...]) -> tuple[str, ...]:
    if any(field_of(model, name.lstrip("-")).unique for name in names):
        return names
    return (*names, "-pk" if names[0].startswith("-") else "pk")


def field_of(model: type[Model], name: str) -> "Field[Any, Any]":
    field = model._meta.pk if name == "pk" else model._meta.get_field(name)
    if not isinstance(field, Field):
        raise TypeError(f"{name} is not a column.")
    return field


def reverse(name: str) -> str:
    return name[1:] if name.startswith("-") else f"-{name}"


def beyond(names: list[str], position: list[Any]) -> Q:
    """Return the condition for rows after a position: `(a, b) > (x, y)`, with a direction for each.

    It is written as `a >= x AND (a > x OR b > y)`, because Postgres can use an index for `a >= x`.
    """
    operator, field = ("lt", names[0][1:]) if names[0].startswith("-") else ("gt", names[0])
    strictly = Q((f"{field}__{operator}", position[0]))
    if len(names) == 1:
        return strictly
    return Q((f"{field}__{operator}e", position[0])) & (strictly | beyond(names[1:], position[1:]))


def read_page(queryset: QuerySet[Any], limit: int, row_bytes: Callable[[Any], int] | None) -> tuple[list[Any], bool]:
    """Return the first rows, at least one, and whether there are more."""
    wanted = queryset[: limit + 1]
    if row_bytes is None:
        rows = list(wanted)
        return rows[:limit], len(rows) > limit
    rows, size = [], 0
    for row in wanted.iterator(chunk_size=10):
        size += row_bytes(row)
        if len(rows) == limit or (rows and size > PAGE_BYTES):
            return rows, True
        rows.append(row)
    return rows, False


def read_limit(request: Request) -> int:
    text = request.query_params.get(LIMIT, str(DEFAULT_LIMIT))
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= MAX_LIMIT:
        raise refusal(LIMIT, f"Must be a whole number from 1 to {MAX_LIMIT}.")
    return int(text)
