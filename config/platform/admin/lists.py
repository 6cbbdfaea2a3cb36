"""Lists and pages of rows that nobody types in, quick however many rows there are."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.contrib.admin import ListFilter, ShowFacets
from django.contrib.admin.utils import get_fields_from_path
from django.core.paginator import Paginator
from django.db.models import ForeignKey, Q, QuerySet, UUIDField
from django.http import HttpRequest
from django.utils.functional import cached_property
from unfold.admin import ModelAdmin

COUNTED = 10_000
OPERATORS = frozenset({"exact", "gte", "lt", "isnull", "in"})  # what our filters and links compare by


class MoreThan(int):
    """A number that templates count with, and print as what it is."""

    def __str__(self) -> str:
        return f"{int(self):,}+"


class BoundedPaginator(Paginator):
    """Counts no further than it shows: counting a whole table reads it on every look at the first page."""

    @cached_property
    def count(self) -> int:
        count: int = self.object_list.order_by()[: COUNTED + 1].count()  # type: ignore[attr-defined]
        return MoreThan(COUNTED) if count > COUNTED else count


class OwnFilters:
    """Lists that a URL filters by what they offer, and by what rows belong to: that is where links lead.

    Django takes any field and any comparison: `?secret__startswith=a` would tell, letter by letter, what no page shows.
    """

    def lookup_allowed(self: Any, lookup: str, value: str, request: HttpRequest) -> bool:
        """What is not is answered by 400. A filter of ours takes its parameter as a whole, and compares by itself."""
        offered = self.get_list_filter(request)
        if lookup in {each.parameter_name for each in offered if is_own(each)}:
            return True
        path, _, operator = lookup.rpartition("__")
        fields = set(self.filtered_by(each for each in offered if not is_own(each)))
        return lookup in fields or (operator in OPERATORS and path in fields)

    def filtered_by(self: Any, offered: Iterator[Any]) -> Iterator[str]:
        """Yield the paths to fields that are offered; to relations also with the field that they go by."""
        fields: dict[str, Any] = {path: get_fields_from_path(self.model, path)[-1] for path in map(name_of, offered)}
        fields |= {field.name: field for field in self.opts.concrete_fields if field.is_relation}
        for path, field in fields.items():
            yield path
            if field.is_relation:
                yield f"{path}__{field.target_field.name}"


def is_own(offered: Any) -> bool:
    """Tell a filter with a parameter of its own from a field, and from a field with a way to show it."""
    return isinstance(offered, type) and issubclass(offered, ListFilter)


def name_of(offered: Any) -> str:
    return str(offered[0] if isinstance(offered, tuple | list) else offered)


class ReadOnly(OwnFilters, ModelAdmin):
    """Rows that nobody makes, edits or deletes by hand.

    `search_fields` are compared as they are, so that an index can answer: Django's own search looks into the middle
    of texts, and casts every UUID of the table to one.
    """

    paginator = BoundedPaginator
    list_per_page = 50
    show_full_result_count = False
    show_facets = ShowFacets.NEVER  # a count for each choice of each filter
    sortable_by: tuple[str, ...] = ()  # by a column without an index the whole table would be sorted
    list_disable_select_all = True  # where there is nothing to be done with what is selected
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
        """An id is looked up by id alone: `id = … OR name = …` over two tables could use neither's index."""
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
