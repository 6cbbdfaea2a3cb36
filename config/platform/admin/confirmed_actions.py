"""Staff actions on one or many rows: confirmed on a separate page, run by POST, reported and logged.

A list's action and a row's button lead to the same confirmation page, which changes nothing. It shows the number of
rows that will change, and the reasons why others will not. Its form carries the selected rows with their revisions.
"""

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.contrib import messages
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied, SuspiciousOperation, ValidationError
from django.db import DataError
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import url_has_allowed_host_and_scheme
from unfold.enums import ActionVariant

from config.platform.admin.lists import ReadOnly
from config.platform.http.problems import Problem
from config.platform.http.quotas import QuotaExceeded
from config.platform.plurals import counted

MAX_ROWS = 1_000  # rows of one confirmation, even if more are selected
# Characters of the form's selection: the key of each row, which may be a path, and its revision.
MAX_SELECTION_LENGTH = 2_000 * MAX_ROWS
TIME_LIMIT_SECONDS = 20.0  # no row is started after it; while the broker is down, each row takes two seconds
MAX_LISTED = 20  # rows that the page lists; the rest are counted
CHANGED = "Changed since you selected it."
NO_TIME = "Time limit reached. Repeat the action for these."


class RowResult(NamedTuple):
    """The result for one row: `done` for the audit log, or the reason why the row is unchanged.

    `is_logged`: the change itself wrote its audit entry, in the same transaction.
    """

    row: Any
    done: str = ""
    is_logged: bool = False
    refusal: str = ""


class Confirmation(NamedTuple):
    """The user who confirmed an action, and the nonce of the page, which detects a double-click."""

    user: Any
    nonce: str


Runner = Callable[[Sequence[Any], Confirmation], Iterable[RowResult]]


def each(do: Callable[[Any], str]) -> Runner:
    """Return a runner that calls `do` for each row.

    `do` returns a description of the change. A Problem that it raises becomes the refusal.
    """

    def run(rows: Sequence[Any], _by: Confirmation) -> Iterator[RowResult]:
        for row in rows:
            try:
                yield RowResult(row, done=do(row))
            except Problem as refusal:
                yield RowResult(row, refusal=refusal.detail)

    return run


def change(do: Callable[[Any], object], done: str) -> Runner:
    """Return a runner like that of `each`, with the same description for each change."""

    def run(row: Any) -> str:
        do(row)
        return done

    return each(run)


@contextmanager
def naming_owners_quota() -> Iterator[None]:
    """Say in quota errors that the quota is the owner's, because the request comes from staff."""
    try:
        yield
    except QuotaExceeded as refusal:
        raise Problem(f"The owner's quota: {refusal.detail}") from None


def no_revision(_row: Any) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaffAction:
    """An action on rows, offered to staff. `label` fits one row or many.

    `refusal` returns the reason why a row would not change, or "": a preview for the page; `do` checks again.
    `revision` returns a value that changes whenever this or a similar action changed the row. A form that is sent twice
    has an outdated revision and does nothing the second time.
    """

    name: str
    label: str
    past: str
    explanation: str
    permission: str
    refusal: Callable[[Any], str]
    do: Runner
    revision: Callable[[Any], str] = no_revision
    icon: str = "play_arrow"
    is_danger: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationQuestion:
    """The content of a confirmation page: rows that will change, and the other rows by reason."""

    action: StaffAction
    eligible: list[Any]
    others: dict[str, list[Any]] = field(default_factory=dict)
    is_truncated: bool = False

    @classmethod
    def about(cls, action: StaffAction, rows: Sequence[Any]) -> "ConfirmationQuestion":
        question = cls(action=action, eligible=[], is_truncated=len(rows) > MAX_ROWS)
        for row in rows[:MAX_ROWS]:
            reason = action.refusal(row)
            (question.others.setdefault(reason, []) if reason else question.eligible).append(row)
        return question

    @property
    def selection(self) -> str:
        """The selection as a single form field, because Django limits the number of fields."""
        return json.dumps([[str(row.pk), self.action.revision(row)] for row in self.eligible])


class StaffActionAdmin(ReadOnly):
    """Admin pages with staff actions. They change rows by POST only, and require the action's permission."""

    row_actions: tuple[StaffAction, ...] = ()
    list_disable_select_all = False

    def allowed(self, request: HttpRequest) -> list[StaffAction]:
        return [action for action in self.row_actions if request.user.has_perm(action.permission)]

    # ---- Actions and buttons ----
    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        if IS_POPUP_VAR in request.GET:
            return {}
        return {action.name: (self.action_of(action), action.name, action.label) for action in self.allowed(request)}

    def action_of(self, action: StaffAction) -> Callable[..., HttpResponse]:
        def ask(_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
            """Read at most one row over the limit, which shows whether more rows are selected."""
            return self.ask(request, action, list(queryset[: MAX_ROWS + 1]), back=request.get_full_path())

        return ask

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Any = None, **kwargs: Any
    ) -> Any:
        """Add a button for each action that applies to the row."""
        eligible = [action for action in self.allowed(request) if obj is not None and not action.refusal(obj)]
        buttons = [self.button(action, obj) for action in eligible]
        context["actions_detail"] = [*(context.get("actions_detail") or []), *buttons]
        return super().render_change_form(request, context, *args, obj=obj, **kwargs)

    def button(self, action: StaffAction, row: Any) -> dict[str, Any]:
        variant = ActionVariant.DANGER if action.is_danger else ActionVariant.DEFAULT
        return {
            "title": action.label,
            "icon": action.icon,
            "variant": variant,
            "attrs": {},
            "dialog": None,
            "path": self.url_of(action.name, row.pk),
        }

    def url_of(self, name: str, *pk: Any) -> str:
        """Return the URL of an admin view of this model, such as `change`."""
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}", args=list(map(quote, pk)))

    def get_urls(self) -> list[URLPattern]:
        prefix = f"{self.opts.app_label}_{self.opts.model_name}"
        own = []
        for action in self.row_actions:
            own += [
                path(f"do/{action.name}/", self.view_of(self.run_action, action), name=f"{prefix}_do_{action.name}"),
                path(
                    f"<path:object_id>/{action.name}/",
                    self.view_of(self.confirm_one, action),
                    name=f"{prefix}_{action.name}",
                ),
            ]
        return [*own, *super().get_urls()]

    def view_of(self, view: Callable[..., HttpResponse], action: StaffAction) -> Any:
        def guarded(request: HttpRequest, **kwargs: str) -> HttpResponse:
            if not (self.has_view_permission(request) and request.user.has_perm(action.permission)):
                raise PermissionDenied
            return view(request, action, **kwargs)

        return self.admin_site.admin_view(guarded)

    # ---- Confirmation ----
    def confirm_one(self, request: HttpRequest, action: StaffAction, object_id: str) -> HttpResponse:
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404
        return self.ask(request, action, [row], back=self.url_of("change", row.pk))

    def ask(self, request: HttpRequest, action: StaffAction, rows: Sequence[Any], *, back: str) -> HttpResponse:
        question = ConfirmationQuestion.about(action, rows)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": f"{action.label}?",
            "question": question,
            "changing": self.count(len(question.eligible)),
            "selected": self.count(min(len(rows), MAX_ROWS)),
            "others": [(reason, self.count(len(left)), self.named(left)) for reason, left in question.others.items()],
            "named": self.named(question.eligible),
            "unlisted": max(len(question.eligible) - MAX_LISTED, 0),
            "limit": MAX_ROWS,
            "nonce": secrets.token_urlsafe(12),
            "back": back,
            "action": self.url_of(f"do_{action.name}"),
        }
        return TemplateResponse(request, "admin/confirm.html", context)

    def named(self, rows: Sequence[Any]) -> list[tuple[str, str]]:
        """Return the names and URLs of the first rows."""
        return [(self.name_of(row), self.url_of("change", row.pk)) for row in rows[:MAX_LISTED]]

    def name_of(self, row: Any) -> str:
        """Return the name of a row on confirmation pages."""
        return str(row)

    def count(self, count: int) -> str:
        return counted(count, str(self.opts.verbose_name), str(self.opts.verbose_name_plural))

    # ---- Running ----
    def run_action(self, request: HttpRequest, action: StaffAction) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        selected = self.selection_in(request)
        rows, missing = self.reread(request, selected)
        changed = [RowResult(row, refusal=CHANGED) for row in rows if action.revision(row) != selected[str(row.pk)]]
        same = [row for row in rows if action.revision(row) == selected[str(row.pk)]]
        results = [*self.do(request, action, same), *changed]
        self.report(request, action, results, missing=missing)
        return HttpResponseRedirect(self.return_url(request))

    def selection_in(self, request: HttpRequest) -> dict[str, str]:
        """Return `{pk: revision}` from the form."""
        text = request.POST.get("selection", "")
        if len(text) > MAX_SELECTION_LENGTH:
            raise SuspiciousOperation
        try:
            selected = {str(pk): str(revision) for pk, revision in json.loads(text)}
        except (TypeError, ValueError, RecursionError):
            raise SuspiciousOperation from None
        if len(selected) > MAX_ROWS:
            raise SuspiciousOperation
        return selected

    def reread(self, request: HttpRequest, selected: dict[str, str]) -> tuple[list[Any], int]:
        """Load the selected rows, in order. Return them and the number of rows that no longer exist."""
        try:
            found = {str(row.pk): row for row in self.get_queryset(request).filter(pk__in=list(selected))}
        except (ValueError, ValidationError, DataError):
            raise SuspiciousOperation from None
        return [found[pk] for pk in selected if pk in found], len(selected) - len(found)

    def do(self, request: HttpRequest, action: StaffAction, rows: Sequence[Any]) -> list[RowResult]:
        """Run the action row by row, and log each change immediately."""
        nonce = request.POST.get("nonce", "")[:64]
        if not nonce.isprintable():  # it becomes part of an idempotency key, which cannot contain NUL
            raise SuspiciousOperation
        by = Confirmation(user=request.user, nonce=nonce)
        until, results = time.monotonic() + TIME_LIMIT_SECONDS, []
        for result in action.do(rows, by):
            results.append(result)
            if result.done and not result.is_logged:
                self.log_change(request, result.row, f"{action.past}: {result.done}")
            if time.monotonic() > until:
                break
        attempted = {result.row.pk for result in results}
        return results + [RowResult(row, refusal=NO_TIME) for row in rows if row.pk not in attempted]

    def report(self, request: HttpRequest, action: StaffAction, results: Sequence[RowResult], *, missing: int) -> None:
        done = [result for result in results if result.done]
        left = Counter(result.refusal for result in results if not result.done)
        if missing:
            left["No longer exists."] += missing
        if done:
            detail = f" {done[0].done}" if len(done) == 1 else ""
            self.message_user(request, f"{action.past} {self.count(len(done))}.{detail}", messages.SUCCESS)
        for reason, count in left.items():
            self.message_user(request, f"Unchanged: {self.count(count)}. {reason}", messages.WARNING)

    def return_url(self, request: HttpRequest) -> str:
        back = request.POST.get("back", "")
        changelist = self.url_of("changelist")
        is_safe = back.startswith(changelist) and url_has_allowed_host_and_scheme(back, allowed_hosts=None)
        return back if is_safe else changelist


def only_if_status(statuses: Iterable[str], reason: str) -> Callable[[Any], str]:
    """Return a `refusal` function for actions that apply to some statuses only."""
    eligible = frozenset(statuses)
    return lambda row: "" if row.status in eligible else reason
