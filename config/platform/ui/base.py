"""What every page is made of: it is for those who are signed in, and what an action may not do is told, not thrown.

A page translates, calls the same functions as the API, and translates back. State changes are POSTs that end in a
redirect, so that a reload repeats nothing; htmx fetches fragments of the same pages and is never needed for an action.
"""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, cast

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.forms import Form
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import redirect
from django.views.generic import TemplateView, View
from rest_framework.request import Request

from config.platform.http.paging import NewestFirst
from config.platform.http.problems import BadInput, NotAuthenticated, NotFound, Problem
from config.platform.http.throttling import Throttle
from config.platform.ui.templatetags.pages import duration


class Counted:
    """Counts requests as the API counts the same ones. Those that are about nothing of the API have no `throttle`."""

    request: HttpRequest
    throttle: ClassVar[type[Throttle] | None] = None

    def count(self, throttle: type[Throttle] | None = None) -> None:
        """Raises RateLimited."""
        if counting := throttle or self.throttle:
            counting().allow_request(api_request(self.request), cast("Any", self))


class Page(LoginRequiredMixin, Counted, TemplateView):
    """A page, or with `fragment_name` a part of one: htmx asks for it by the header `HX-Request`.

    A GET is counted; what a POST counts as each page says itself.
    """

    fragment_name: str = ""
    title: str = ""

    @property
    def user(self) -> User:
        return cast("User", self.request.user)

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        self.count()
        return super().get(request, *args, **kwargs)

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(**{"title": self.title, **context})

    def handle_no_permission(self) -> HttpResponseRedirect:
        """Lead to the sign-in; but htmx, which would put that into the middle of a page, is told by words."""
        if not self.request.user.is_authenticated and is_htmx(self.request):
            raise NotAuthenticated("You are signed out. Load the page again to sign in.")
        return super().handle_no_permission()

    def get_template_names(self) -> list[str]:
        if self.fragment_name and is_htmx(self.request):
            return [self.fragment_name]
        return super().get_template_names()

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        """The same URL answers with the page or with a part of it; a cache in between must know."""
        response = super().render_to_response(context, **kwargs)
        response["Vary"] = "HX-Request, Cookie"
        response["Cache-Control"] = "no-store"
        return response


def is_htmx(request: HttpRequest) -> bool:
    """Tell whether htmx asks for a part of a page, and not for a page to go to or back to."""
    return "HX-Request" in request.headers and not is_boosted(request)


def is_boosted(request: HttpRequest) -> bool:
    return "HX-Boosted" in request.headers or "HX-History-Restore-Request" in request.headers


class Action(LoginRequiredMixin, Counted, View):
    """A button: `act` does it and returns what to say, `then` where to go. A Problem is said instead."""

    http_method_names: ClassVar[list[str]] = ["post"]  # type: ignore[misc]
    touched: Any = None  # the row it is about: what staff do to another's goes into its history

    @property
    def user(self) -> User:
        return cast("User", self.request.user)

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        try:
            self.count()
            said = self.act(**kwargs)
        except NotFound:
            raise  # a stranger's is as little there as for a GET
        except Problem as problem:
            messages.error(request, told(problem))
        else:
            self.put_on_record(said)
            if said:
                messages.success(request, said)
        return redirect(self.then(**kwargs))

    def put_on_record(self, said: str) -> None:
        if self.touched is not None and self.touched.user_id != self.user.pk:
            LogEntry.objects.log_actions(
                self.user.pk, [self.touched], CHANGE, change_message=f"On its page: {said}", single_object=True
            )

    def act(self, *args: Any, **kwargs: Any) -> str:
        """Do it; return one sentence that says what was done, "" for nothing to say."""
        raise NotImplementedError

    def then(self, *args: Any, **kwargs: Any) -> str:
        """Return where to go, done or not."""
        raise NotImplementedError


def api_request(request: HttpRequest) -> Request:
    """Return the request as the API's functions and throttles take it. Who asks is known already, by the session."""
    asked = Request(request)
    asked.user = request.user
    return asked


def told(problem: Problem) -> str:
    """Return a problem as a sentence or two: with what is wrong in the input, and when to try again."""
    said = [problem.detail]
    if isinstance(problem, BadInput):
        said = [error.detail for error in problem.errors[:3]]
    if problem.retry_after:
        said.append(f"Try again in {duration(problem.retry_after)}.")
    return " ".join(said)


def show_in(form: Form, problem: Problem, *, fields: Callable[[str], str | None]) -> None:
    """Put the errors of a refused body at the fields that made it.

    `fields` tells the field of a JSON Pointer; None, or a field that there is not, is said above the form.
    """
    if not isinstance(problem, BadInput):
        form.add_error(None, told(problem))
        return
    for error in problem.errors:
        name = fields(error.pointer)
        form.add_error(name if name in form.fields else None, error.detail)


class Listing:
    """One page of rows by cursor, as the API's lists have them: `rows`, and links to `newer` and `older` ones."""

    def __init__(self, request: HttpRequest, rows: QuerySet[Any], *, ordering: Iterable[str] = ()) -> None:
        paginator = NewestFirst()
        if ordering:
            paginator.ordering = tuple(ordering)
        self.rows = paginator.paginate_queryset(rows, Request(request))
        self.older, self.newer = query(paginator.next_link), query(paginator.previous_link)


def query(link: str | None) -> str:
    """Return the query string of a link, `?cursor=…`, "" for none: pages link relatively."""
    return "?" + link.partition("?")[2] if link else ""
