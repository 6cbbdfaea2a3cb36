"""Base classes of pages and actions. Both require a signed-in user; actions show problems as messages.

Pages call the same functions as the API. State changes are POSTs that respond with a redirect, so that a reload repeats
nothing. htmx only fetches fragments of these pages. All actions work without it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar, cast
from uuid import UUID

from django.contrib import messages
from django.contrib.admin.models import LogEntry
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import AnonymousUser, User
from django.db.models import QuerySet
from django.forms import Form
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import redirect
from django.views.generic import TemplateView, View
from django_htmx.http import HttpResponseClientRedirect
from django_htmx.middleware import HtmxDetails
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from config.platform.durations import duration
from config.platform.http import roles, staff
from config.platform.http.paging import CURSOR, NewestFirst
from config.platform.http.problems import BadInput, NotAuthenticated, NotFound, Problem, input_errors
from config.platform.http.serializers import StrictSerializer
from config.platform.http.throttling import Throttle

Row = TypeVar("Row")


class RateLimitedView:
    """Mixin with the user, and with the rate limit of the corresponding API request.

    Views without a corresponding API request set no `throttle`.
    """

    request: HttpRequest
    throttle: ClassVar[type[Throttle] | None] = None

    @property
    def user(self) -> User:
        return cast("User", self.request.user)

    def count(self, throttle: type[Throttle] | None = None) -> None:
        """Count the request. Raises RateLimited."""
        if limit := throttle or self.throttle:
            limit().allow_request(api_request(self.request), cast("Any", self))


class Page(LoginRequiredMixin, RateLimitedView, TemplateView):
    """A page, or its fragment `fragment_name` for requests with the header `HX-Request`.

    GET requests are rate-limited here. Pages limit their POST requests themselves.
    """

    fragment_name: str = ""
    title: str = ""

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        self.count()
        return super().get(request, *args, **kwargs)

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(**{"title": self.title, **context})

    def handle_no_permission(self) -> HttpResponseRedirect:
        """Redirect to the sign-in page, or raise for htmx, which would insert that page into the current one."""
        if not self.request.user.is_authenticated and is_htmx(self.request):
            raise NotAuthenticated("You are signed out. Reload the page to sign in.")
        return super().handle_no_permission()

    def get_template_names(self) -> list[str]:
        if self.fragment_name and is_htmx(self.request):
            return [self.fragment_name]
        return super().get_template_names()

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        """Set cache headers: the same URL returns the page or a fragment."""
        response = super().render_to_response(context, **kwargs)
        response["Vary"] = "HX-Request, Cookie"
        response["Cache-Control"] = "no-store"
        return response


def role(request: HttpRequest) -> dict[str, Any]:
    """Add `is_read_only` to the context, which is true for auditors."""
    return {"is_read_only": partial(roles.is_auditor, getattr(request, "user", AnonymousUser()))}


def is_htmx(request: HttpRequest) -> bool:
    """Return whether htmx requests a fragment, and not a whole page or a page from its history."""
    htmx = HtmxDetails(request)
    return bool(htmx) and not htmx.boosted and not htmx.history_restore_request


def redirect_page(request: HttpRequest, url: str) -> HttpResponse:
    """Redirect the whole page. htmx would follow a 302 itself and insert the next page into this one."""
    return HttpResponseClientRedirect(url) if is_htmx(request) else redirect(url)


class Action(LoginRequiredMixin, RateLimitedView, View):
    """The view of a button. `act` returns a message, `next_url` the next page. Problems become messages."""

    http_method_names: ClassVar[list[str]] = ["post"]  # type: ignore[misc]
    entry: LogEntry | None = None  # the record of a change to another user's row

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        try:
            self.count()
            message = self.act(**kwargs)
        except Problem as problem:
            if self.entry:
                self.entry.delete()
            if isinstance(problem, NotFound):
                raise  # other users' rows are 404, as for GET
            messages.error(request, problem_text(problem))
        else:
            if self.entry:
                self.entry.change_message = f"On the web page: {message}"
                self.entry.save(update_fields=["change_message"])
            if message:
                messages.success(request, message)
        return redirect(self.next_url(**kwargs))

    def record_change(self, row: Any) -> None:
        """Record a staff change to another user's row before it is made, so that a crash cannot leave it unrecorded."""
        self.entry = staff.record(self.user, row, f"On the web page: {type(self).__name__}")

    def act(self, *args: Any, **kwargs: Any) -> str:
        """Run the action and return a message, or "" for none."""
        raise NotImplementedError

    def next_url(self, *args: Any, **kwargs: Any) -> str:
        """Return the next page, for success and failure."""
        raise NotImplementedError


def api_request(request: HttpRequest) -> Request:
    """Wrap the request, authenticated by the session, for DRF: the API's functions and throttles need it."""
    drf_request = Request(request)
    drf_request.user = request.user
    drf_request.auth = None  # otherwise, reading it authenticates again and sets the page's user to AnonymousUser
    return drf_request


def uuid_of(text: str) -> UUID | None:
    """Return the UUID in a form field or query, or None if it is invalid."""
    try:
        return UUID(text)
    except ValueError:
        return None


def too_many_attempts(seconds: int) -> str:
    return f"Too many attempts. Try again in {duration(seconds)}."


def problem_text(problem: Problem) -> str:
    """Return a problem as text for people, with the input errors and the time to retry."""
    texts = [problem.detail]
    if isinstance(problem, BadInput):
        texts = [error.detail for error in problem.errors[:3]]
    if problem.retry_after:
        texts.append(f"Try again in {duration(problem.retry_after)}.")
    return " ".join(texts)


WIDTH, MIN_WIDTH = 1000, 6  # of a progress bar and of its smallest visible part, in SVG units


def segments(counts: Iterable[tuple[str, int]], total: int) -> list[dict[str, Any]]:
    """Return the segments of a progress bar from the left: status, x, and width. The background shows the rest."""
    x, found = 0, []
    for status, number in counts:
        if number:
            width = max(MIN_WIDTH, round(WIDTH * number / total))
            found.append({"status": status, "x": x, "width": width})
            x += width
    return found


def run_each(rows: Sequence[Row], run: Callable[[Row], object], *, stop: type[Problem]) -> tuple[int, str]:
    """Run an action on each row, until a problem of the class `stop`.

    Return the number of successes, and the reasons of the refusals with their counts.
    """
    refusals: Counter[str] = Counter()
    for number, row in enumerate(rows):
        try:
            run(row)
        except stop as problem:
            refusals[problem_text(problem)] += len(rows) - number
            break
        except Problem as problem:
            refusals[problem_text(problem)] += 1
    reasons = (f"{number:,} unchanged: {reason}" for reason, number in refusals.items())
    return len(rows) - refusals.total(), " ".join(reasons)


def validated(serializer: type[StrictSerializer], data: Any) -> Any:
    """Return the validated data of a serializer of the API. Raises BadInput."""
    try:
        return serializer.read(data)
    except ValidationError as error:
        raise BadInput(*input_errors(error.detail)) from None


def show_in(form: Form, problem: Problem, *, fields: Callable[[str], str | None]) -> None:
    """Show the errors of a rejected request body at the form's fields.

    `fields` returns the field for a JSON Pointer. Errors without a known field are shown above the form.
    """
    if not isinstance(problem, BadInput):
        form.add_error(None, problem_text(problem))
        return
    for error in problem.errors:
        name = fields(error.pointer)
        form.add_error(name if name in form.fields else None, error.detail)


def first_page(request: HttpRequest, **values: str) -> str:
    """Return the query string of a list's first page, such as `?q=a&status=failed`.

    It has the current filters, changed by `values`. An empty value removes a filter.
    """
    query = request.GET.copy()
    for name, value in {CURSOR: "", **values}.items():
        query.pop(name, None)
        if value:
            query[name] = value
    return f"?{query.urlencode()}" if query else ""


class Listing:
    """One page of rows with the API's cursor pagination: `rows`, and links to `newer` and `older` pages."""

    def __init__(self, request: HttpRequest, rows: QuerySet[Any], *, ordering: tuple[str, ...]) -> None:
        paginator = NewestFirst()
        paginator.ordering = ordering
        self.rows = paginator.paginate_queryset(rows, Request(request))
        self.older, self.newer = query(paginator.next_link), query(paginator.previous_link)


def query(link: str | None) -> str:
    """Return the query string of a link, such as `?cursor=…`, or ""."""
    return "?" + link.partition("?")[2] if link else ""
