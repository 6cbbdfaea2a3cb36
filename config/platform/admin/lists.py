"""Read-only admin lists that stay fast with any number of rows."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from django.contrib.admin import ListFilter, ShowFacets, SimpleListFilter
from django.contrib.admin.utils import get_fields_from_path
from django.core.paginator import Paginator
from django.db.models import ForeignKey, Q, QuerySet, UUIDField
from django.http import HttpRequest
from django.utils.functional import cached_property
from unfold.admin import ModelAdmin

COUNTED = 10_000
OPERATORS = frozenset({"exact", "gte", "lt", "isnull", "in"})  # lookups of our filters and links


class MoreThan(int):
    """A bounded count, printed as `10,000+`."""

    def __str__(self) -> str:
        return f"{int(self):,}+"


class BoundedPaginator(Paginator):
    """Paginator with a bounded count: counting a large table would read all of it for each page."""

    @cached_property
    def count(self) -> int:
        count: int = self.object_list.order_by()[: COUNTED + 1].count()  # type: ignore[attr-defined]
        return MoreThan(COUNTED) if count > COUNTED else count


class OwnFilters:
    """Restriction of URL filters to the offered filters and to relations, which links use.

    Django accepts any field and lookup: `?secret__startswith=a` would reveal hidden values letter by letter.
    """

    def lookup_allowed(self: Any, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow a lookup, else Django responds with 400. Our own filters handle their whole parameter."""
        offered = self.get_list_filter(request)
        if lookup in {each.parameter_name for each in offered if is_own(each)}:
            return True
        path, _, operator = lookup.rpartition("__")
        fields = set(self.filtered_by(each for each in offered if not is_own(each)))
        return lookup in fields or (operator in OPERATORS and path in fields)

    def filtered_by(self: Any, offered: Iterator[Any]) -> Iterator[str]:
        """Yield the paths of filterable fields; for relations also with their target field."""
        fields: dict[str, Any] = {path: get_fields_from_path(self.model, path)[-1] for path in map(name_of, offered)}
        fields |= {field.name: field for field in self.opts.concrete_fields if field.is_relation}
        for path, field in fields.items():
            yield path
            if field.is_relation:
                yield f"{path}__{field.target_field.name}"


class KnownValues(SimpleListFilter):
    """List filter with known values and labels. Django's own filters would scan the table for distinct values."""

    options: Mapping[str, str]
    field = ""  # the parameter's name by default

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return list(self.options.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name = self.field or str(self.parameter_name)
        return queryset if self.value() is None else queryset.filter(**{name: self.value()})


def is_own(offered: Any) -> bool:
    """Whether a list filter is a class with its own parameter, and not a field."""
    return isinstance(offered, type) and issubclass(offered, ListFilter)


def name_of(offered: Any) -> str:
    return str(offered[0] if isinstance(offered, tuple | list) else offered)


class ReadOnly(OwnFilters, ModelAdmin):
    """Rows that are not created, edited or deleted by hand.

    Search compares `search_fields` exactly, so that it can use an index. Django's own search matches substrings and
    casts each UUID to text.
    """

    paginator = BoundedPaginator
    list_per_page = 50
    show_full_result_count = False
    show_facets = ShowFacets.NEVER  # facets would count rows for each choice of each filter
    sortable_by: tuple[str, ...] = ()  # sorting by an unindexed column reads the whole table
    list_disable_select_all = True  # without actions, selection is useless
    actions: tuple[str, ...] | None = None

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return (queryset.filter(self.equal_to(term)) if term else queryset), False

    def equal_to(self, term: str) -> Q:
        """Match exactly. IDs are matched alone: `id = … OR name = …` over two tables could use neither index."""
        texts = Q(pk__in=())
        for name in self.search_fields:
            field = get_fields_from_path(self.model, name)[-1]
            while isinstance(field, ForeignKey):
                field = field.target_field
            if not isinstance(field, UUIDField):
                texts |= Q(**{name: term})
            elif found := as_uuid(term):
                return Q(**{name: found})
        return texts


def as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
