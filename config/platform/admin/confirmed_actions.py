"""What staff do to rows, one or many: asked about on a page of its own, done by POST, told, and put on record.

A list's action and a row's button lead to the same page, which changes nothing. It says how many rows will be touched
and which are left alone and why; its form then carries what was chosen, as it was seen.
"""

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
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

from config.platform.admin.display import counted
from config.platform.admin.lists import ReadOnly
from config.platform.http.problems import Problem

MOST = 1_000  # rows at a time, however many are selected
LONGEST = 2_000 * MOST  # characters of what a form carries: of each row its key, a path perhaps, and its mark
SECONDS = 20.0  # after which no further row is begun: a broker that is away costs two seconds each time
NAMED = 20  # rows that the page names; the others it counts
CHANGED = "It has changed since it was chosen."
NO_TIME = "There was no time left. Do it once more for these."


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What tells one confirmation page from another: two clicks on it are one request."""

    nonce: str


class Outcome(NamedTuple):
    """What became of a row: what was done, for the record, or why it was left alone."""

    row: Any
    done: str = ""
    left: str = ""


Work = Callable[[Sequence[Any], Asking], Iterable[Outcome]]


def each(do: Callable[[Any, Asking], str]) -> Work:
    """Make the work on many rows of that on one: `do` returns what was done, or raises a Problem, which is no error
    here but why the row stays as it is."""

    def work(rows: Sequence[Any], asking: Asking) -> Iterator[Outcome]:
        for row in rows:
            try:
                yield Outcome(row, done=do(row, asking))
            except Problem as refusal:
                yield Outcome(row, left=refusal.detail)

    return work


def nothing_seen(_row: Any) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """Something that staff may do. `label` is said of one row and of many.

    `why_not` tells why a row will be left alone, "" when it will not; a guess for the page, as `do` decides. `mark` is
    of a row what changes when this, or something like it, was done to it: a form that is sent twice finds another mark
    and does nothing the second time.
    """

    name: str
    label: str
    past: str
    explanation: str
    permission: str
    why_not: Callable[[Any], str]
    do: Work
    mark: Callable[[Any], str] = nothing_seen
    icon: str = "play_arrow"
    is_danger: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the page asks: rows that will be touched, and those that stay as they are, by the reason."""

    verb: Verb
    fitting: list[Any]
    others: dict[str, list[Any]] = field(default_factory=dict)
    is_cut: bool = False

    @classmethod
    def about(cls, verb: Verb, rows: Sequence[Any]) -> "Question":
        asked = cls(verb=verb, fitting=[], is_cut=len(rows) > MOST)
        for row in rows[:MOST]:
            why = verb.why_not(row)
            (asked.others.setdefault(why, []) if why else asked.fitting).append(row)
        return asked

    @property
    def chosen(self) -> str:
        """All in one field: Django takes no more than a thousand."""
        return json.dumps([[str(row.pk), self.verb.mark(row)] for row in self.fitting])


class WithVerbs(ReadOnly):
    """Pages of rows that staff may do something to. Everything comes by POST alone, and needs the verb's permission."""

    verbs: tuple[Verb, ...] = ()
    list_disable_select_all = False

    def allowed(self, request: HttpRequest) -> list[Verb]:
        return [verb for verb in self.verbs if request.user.has_perm(verb.permission)]

    # ---- Where it is offered ----
    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        if IS_POPUP_VAR in request.GET:
            return {}
        return {verb.name: (self.action_of(verb), verb.name, verb.label) for verb in self.allowed(request)}

    def action_of(self, verb: Verb) -> Callable[..., HttpResponse]:
        def ask(_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
            """One more than are done at a time is read, to know whether there are more; never all of them."""
            return self.ask(request, verb, list(queryset[: MOST + 1]), back=request.get_full_path())

        return ask

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Any = None, **kwargs: Any
    ) -> Any:
        """A row's page has the buttons that would do something."""
        fitting = [verb for verb in self.allowed(request) if obj is not None and not verb.why_not(obj)]
        buttons = [self.button(verb, obj) for verb in fitting]
        context["actions_detail"] = [*(context.get("actions_detail") or []), *buttons]
        return super().render_change_form(request, context, *args, obj=obj, **kwargs)

    def button(self, verb: Verb, row: Any) -> dict[str, Any]:
        variant = ActionVariant.DANGER if verb.is_danger else ActionVariant.DEFAULT
        return {
            "title": verb.label,
            "icon": verb.icon,
            "variant": variant,
            "attrs": {},
            "dialog": None,
            "path": self.url_of(verb.name, row.pk),
        }

    def url_of(self, name: str, pk: Any) -> str:
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}", args=[quote(pk)])

    def get_urls(self) -> list[URLPattern]:
        begin = f"{self.opts.app_label}_{self.opts.model_name}"
        own = []
        for verb in self.verbs:
            own += [
                path(f"do/{verb.name}/", self.view_of(self.carry_out, verb), name=f"{begin}_do_{verb.name}"),
                path(
                    f"<path:object_id>/{verb.name}/",
                    self.view_of(self.ask_about_one, verb),
                    name=f"{begin}_{verb.name}",
                ),
            ]
        return [*own, *super().get_urls()]

    def view_of(self, view: Callable[..., HttpResponse], verb: Verb) -> Any:
        def guarded(request: HttpRequest, **kwargs: str) -> HttpResponse:
            if not (self.has_view_permission(request) and request.user.has_perm(verb.permission)):
                raise PermissionDenied
            return view(request, verb, **kwargs)

        return self.admin_site.admin_view(guarded)

    # ---- Asking ----
    def ask_about_one(self, request: HttpRequest, verb: Verb, object_id: str) -> HttpResponse:
        row = self.found(request, object_id)
        back = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[quote(row.pk)])
        return self.ask(request, verb, [row], back=back)

    def found(self, request: HttpRequest, object_id: str) -> Any:
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404
        return row

    def ask(self, request: HttpRequest, verb: Verb, rows: Sequence[Any], *, back: str) -> HttpResponse:
        question = Question.about(verb, rows)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": f"{verb.label}?",
            "question": question,
            "touched": self.count(len(question.fitting)),
            "chosen_count": self.count(min(len(rows), MOST)),
            "others": [(why, self.count(len(left)), self.named(left)) for why, left in question.others.items()],
            "named": self.named(question.fitting),
            "unnamed": max(len(question.fitting) - NAMED, 0),
            "most": MOST,
            "nonce": secrets.token_urlsafe(12),
            "back": back,
            "action": reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_do_{verb.name}"),
        }
        return TemplateResponse(request, "admin/confirm.html", context)

    def named(self, rows: Sequence[Any]) -> list[tuple[str, str]]:
        """Return what the first rows are called, and where their pages are."""
        page = f"admin:{self.opts.app_label}_{self.opts.model_name}_change"
        return [(self.name_of(row), reverse(page, args=[quote(row.pk)])) for row in rows[:NAMED]]

    def name_of(self, row: Any) -> str:
        """What a row is called where somebody has to decide about it."""
        return str(row)

    def count(self, count: int) -> str:
        return counted(count, str(self.opts.verbose_name), str(self.opts.verbose_name_plural))

    # ---- Doing ----
    def carry_out(self, request: HttpRequest, verb: Verb) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        chosen = self.chosen(request)
        rows, missing = self.as_they_are(request, chosen)
        changed = [Outcome(row, left=CHANGED) for row in rows if verb.mark(row) != chosen[str(row.pk)]]
        seen = [row for row in rows if verb.mark(row) == chosen[str(row.pk)]]
        asking = Asking(nonce=request.POST.get("nonce", "")[:64])
        outcomes = [*self.do(request, verb, seen, asking), *changed]
        self.tell(request, verb, outcomes, missing=missing)
        return HttpResponseRedirect(self.way_back(request))

    def chosen(self, request: HttpRequest) -> dict[str, str]:
        """Return `{pk: mark}` as the page carried them."""
        text = request.POST.get("chosen", "")
        if len(text) > LONGEST:
            raise SuspiciousOperation
        try:
            chosen = {str(pk): str(mark) for pk, mark in json.loads(text)}
        except (TypeError, ValueError, RecursionError):
            raise SuspiciousOperation from None
        if len(chosen) > MOST:
            raise SuspiciousOperation
        return chosen

    def as_they_are(self, request: HttpRequest, chosen: dict[str, str]) -> tuple[list[Any], int]:
        """Return the chosen rows, read anew and in their order, and how many are gone."""
        try:
            found = {str(row.pk): row for row in self.get_queryset(request).filter(pk__in=list(chosen))}
        except (ValueError, ValidationError, DataError):
            raise SuspiciousOperation from None
        return [found[pk] for pk in chosen if pk in found], len(chosen) - len(found)

    def do(self, request: HttpRequest, verb: Verb, rows: Sequence[Any], asking: Asking) -> list[Outcome]:
        """Do it to one row after the other, each put on record as soon as it is done."""
        until, outcomes = time.monotonic() + SECONDS, []
        for outcome in verb.do(rows, asking):
            outcomes.append(outcome)
            if outcome.done:
                self.log_change(request, outcome.row, f"{verb.past}: {outcome.done}")
            if time.monotonic() > until:
                break
        begun = {outcome.row.pk for outcome in outcomes}
        return outcomes + [Outcome(row, left=NO_TIME) for row in rows if row.pk not in begun]

    def tell(self, request: HttpRequest, verb: Verb, outcomes: Sequence[Outcome], *, missing: int) -> None:
        done = [outcome for outcome in outcomes if outcome.done]
        left = Counter(outcome.left for outcome in outcomes if not outcome.done)
        if missing:
            left["It is not there any more."] += missing
        if done:
            detail = f" {done[0].done}" if len(done) == 1 else ""
            self.message_user(request, f"{verb.past} {self.count(len(done))}.{detail}", messages.SUCCESS)
        for why, count in left.items():
            self.message_user(request, f"Left alone: {self.count(count)}. {why}", messages.WARNING)

    def way_back(self, request: HttpRequest) -> str:
        back = request.POST.get("back", "")
        ours = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
        is_ours = back.startswith(ours) and url_has_allowed_host_and_scheme(back, allowed_hosts=None)
        return back if is_ours else ours


def one_of(statuses: Iterable[str], why: str) -> Callable[[Any], str]:
    """Make a `why_not` of the statuses that fit."""
    fitting = frozenset(statuses)
    return lambda row: "" if row.status in fitting else why
