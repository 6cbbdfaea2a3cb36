"""Admin lists that stay fast with any number of rows."""

from collections.abc import Iterator, Mapping
from typing import Any

from django.contrib import messages
from django.contrib.admin import ListFilter, ShowFacets, SimpleListFilter
from django.contrib.admin.utils import get_fields_from_path
from django.core.paginator import Paginator
from django.db.models import ForeignKey, Q, QuerySet, UUIDField
from django.http import HttpRequest
from django.utils.functional import cached_property
from unfold.admin import ModelAdmin

from config.platform.db.search import begins_with
from config.platform.ui.base import uuid_of

MAX_COUNT = 10_000
MAX_SEARCHED = 100_000  # newest rows that a filter without an index reads
OPERATORS = frozenset({"exact", "gte", "lt", "isnull", "in"})  # lookups in the URLs of filters and links


class MoreThan(int):
    """A bounded count, printed as `10,000+`."""

    def __str__(self) -> str:
        return f"{int(self):,}+"


class BoundedPaginator(Paginator):
    """Paginator with a bounded count: counting a large table would read all of it for each page."""

    @cached_property
    def count(self) -> int:
        count: int = self.object_list.order_by()[: MAX_COUNT + 1].count()  # type: ignore[attr-defined]
        return MoreThan(MAX_COUNT) if count > MAX_COUNT else count


class RestrictedFilters:
    """Mixin that restricts URL filters to those on the page, and to relations, which links use.

    Django accepts any field and lookup: `?secret__startswith=a` would reveal hidden values letter by letter.
    """

    def lookup_allowed(self: Any, lookup: str, value: str, request: HttpRequest) -> bool:
        """Return whether a lookup is allowed. Django responds to others with 400. Filter classes handle any value."""
        offered = self.get_list_filter(request)
        if lookup in {each.parameter_name for each in offered if is_filter_class(each)}:
            return True
        path, _, operator = lookup.rpartition("__")
        fields = set(self.filtered_by(each for each in offered if not is_filter_class(each)))
        return lookup in fields or (operator in OPERATORS and path in fields)

    def filtered_by(self: Any, offered: Iterator[Any]) -> Iterator[str]:
        """Yield the paths of filterable fields. A relation has a second path, with its target field."""
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


def is_filter_class(offered: Any) -> bool:
    """Return whether a list filter is a class with its own parameter, and not a field."""
    return isinstance(offered, type) and issubclass(offered, ListFilter)


def name_of(offered: Any) -> str:
    return str(offered[0] if isinstance(offered, tuple | list) else offered)


class ReadOnly(RestrictedFilters, ModelAdmin):
    """Admin of rows that staff cannot create, edit, or delete.

    Search uses indexes: it compares `search_fields` exactly, and finds IDs also by the first digits that lists show.
    Django's search would match substrings and cast each UUID to text.

    `unindexed` names query parameters, or `name=value` pairs, that would read the whole table if few rows match. With
    one of them, a list searches only the newest rows, and shows a message if older ones exist. `indexed` names
    parameters with an index. With one of them, all others are cheap.
    """

    unindexed: frozenset[str] = frozenset()
    indexed: frozenset[str] = frozenset()

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
        found = queryset.filter(self.equal_to(term)) if term else queryset
        return (self.newest(request, found) if self.reads_whole_table(request) else found), False

    def reads_whole_table(self, request: HttpRequest) -> bool:
        given = {name: value for name, value in request.GET.items() if value}
        used = {name.partition("__")[0] for name in given} | {f"{name}={value}" for name, value in given.items()}
        return not used.isdisjoint(self.unindexed) and used.isdisjoint(self.indexed)

    def newest(self, request: HttpRequest, found: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows that are among the newest of the table, by the first column of the ordering."""
        order = str(self.get_ordering(request)[0])
        column = order.removeprefix("-")
        edge = (
            self.model.objects.order_by(order).values_list(column, flat=True)[MAX_SEARCHED : MAX_SEARCHED + 1].first()
        )
        if edge is None:
            return found
        if request.method == "GET":
            rows = self.opts.verbose_name_plural
            self.message_user(request, f"Only the newest {MAX_SEARCHED:,} {rows} were searched.", messages.INFO)
        return found.filter(**{f"{column}__gt": edge})

    def equal_to(self, term: str) -> Q:
        """Match a term exactly, or an ID by its first digits.

        A UUID matches IDs only: `id = … OR name = …` over two tables could use neither index.
        """
        texts = Q(pk__in=())
        for name in self.search_fields:
            field = get_fields_from_path(self.model, name)[-1]
            while isinstance(field, ForeignKey):
                field = field.target_field
            if not isinstance(field, UUIDField):
                texts |= self.text_equal_to(name, term)
            elif uuid_of(term):
                return Q(**{name: term})
            elif beginning := begins_with(name, term):
                texts |= beginning
        return texts

    def text_equal_to(self, name: str, term: str) -> Q:
        """Match a text exactly. Look related rows up first, because Postgres cannot estimate the matches of a join."""
        relation, _, column = name.partition("__")
        if not column:
            return Q(**{name: term})
        related = self.model._meta.get_field(relation).related_model
        return Q(**{f"{relation}__in": list(related.objects.filter(**{column: term}).values_list("pk", flat=True))})


class DailyUsageAdmin(ReadOnly):
    """Usage of daily quotas. Subclasses show their counts."""

    list_filter = ("day",)
    list_select_related = ("user",)
    search_fields = ("user__username",)
    search_help_text = "Exact username"
    ordering = ("-day", "user_id")


class AllowanceAdmin(RestrictedFilters, ModelAdmin):
    """Quota overrides of users. Past usage stays counted. Subclasses show their quotas."""

    list_select_related = ("user",)
    search_fields = ("user__username",)
    autocomplete_fields = ("user",)
