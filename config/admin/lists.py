"""Lists and pages of rows that nobody types in, quick however many rows there are."""

from typing import Any
from uuid import UUID

from django.contrib.admin import ShowFacets
from django.contrib.admin.utils import get_fields_from_path
from django.core.paginator import Paginator
from django.db.models import ForeignKey, Q, QuerySet, UUIDField
from django.http import HttpRequest
from django.utils.functional import cached_property
from unfold.admin import ModelAdmin

COUNTED = 10_000


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


class ReadOnly(ModelAdmin):
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
