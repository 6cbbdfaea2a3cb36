"""The page of one document, with its progress and its result."""

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Case, Exists, F, OuterRef, When

from config.platform.db.text_size import text_size
from config.platform.http import staff
from config.platform.http.audit import CHANGES
from config.platform.ui.base import is_htmx
from etl.api import answer, lookup
from etl.core import completeness
from etl.core.states import Status
from etl.models import ReviewEvent, Sample, Task
from etl.pages import explanations, page_images, results
from etl.pages.base import CONTENT_OPENED, TaskPage
from etl.pages.edit_form import text_of
from etl.pages.steps import steps_of
from etl.pipeline import deletion, engines, representation, review
from etl.runstate import RunState
from rules.library import catalog, requirements
from rules.library.catalog import UnknownRule
from rules.library.choices import rules_for

MAX_EVENTS = 50  # of the review history
WORDS = {"corrected": "Corrected", "approved": "Approved", "approval_removed": "Approval removed"}
EMPTY, LARGE = "(empty)", "(too large to show)"
MAX_CHANGE = 20_000  # characters of a change that the history loads
PANES = ("markdown", "json")  # which htmx fetches separately


class DocumentPage(TaskPage):
    """The page of a document. htmx fetches its fragment on each event until the task has ended."""

    audited = CHANGES
    template_name = "etl/document.html"
    fragment_name = "etl/_document.html"

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> Any:
        """Allow images from the object storage, also before the document is parsed: the page shows them afterwards."""
        return page_images.allow_images(super().render_to_response(context, **kwargs))

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        state = self.state()
        may_open = staff.may_open(self.user, state.user_id)
        if not may_open:
            state = lookup.without_data(state)
        elif state.has_ended:
            lookup.record_access(state, user=self.user, message=CONTENT_OPENED)
        rule, mode = pinned_rule(state)
        return super().get_context_data(
            title=state.filename,
            state=state,
            owner=owner_of(state, self.user),
            rule=rule,
            lacks_model=requirements.lacks_model(mode),
            steps=steps_of(state, rule=rule),
            failure=failure_of(state),
            einvoice=representation.einvoice(state),
            warnings=[{**each, "explained": explanations.of_warning(each["code"])} for each in warnings_of(state)],
            incomplete=completeness.describe(completeness.incomplete_pages(state.metadata["warnings"])),
            is_running=not (state.has_ended or state.is_cancellable),
            may_change=staff.may_change(self.user, Task(user_id=state.user_id)),
            may_delete=staff.may_change(self.user, Task(user_id=state.user_id), "delete"),
            may_open=may_open,
            earlier=earlier_of(state),
            expires_at=deletion.expiry(state.task_id, created_at=state.created_at),
            events=f"{representation.path_of(state.task_id)}/events",
            is_fragment=is_htmx(self.request),
            **(self.ended_context(state, mode, may_open=may_open) if state.has_ended else self.open_context(state)),
            **context,
        )

    def open_context(self, state: RunState) -> dict[str, Any]:
        """Return the text and the previous result of an unfinished document, if there are any.

        Fragments that are fetched on events are without them, so that the panes keep their scroll positions.
        """
        if is_htmx(self.request) and self.request.headers.get("HX-Target") not in PANES:
            return {}
        shown = results.with_previous_text(state)
        if not (shown.markdown_key or state.previous_run):
            return {}
        lookup.record_access(state, user=self.user, message=CONTENT_OPENED)
        return {"last": self.panes(shown, has_images=bool(state.markdown_key))}

    def panes(self, state: RunState, *, has_images: bool = True) -> dict[str, Any]:
        return {
            "images": page_images.pane(state, first=results.number(self.request, "page") or 1) if has_images else None,
            "markdown": results.markdown_pane(state, self.request),
            "json": results.json_pane(state, self.request),
        }

    def ended_context(self, state: RunState, mode: str, *, may_open: bool) -> dict[str, Any]:
        default, groups = rules_for(self.user)
        return {
            "default_rule": default,
            "rules": groups,
            "is_rule_visible": any(str(state.rule_id) == value for _, choices in groups for value, _ in choices),
            "can_extract": bool(state.markdown_key),
            "has_model": requirements.has_model(),
            "sample": sample_of(state, mode, self.user),
            "review": review_of(state) if may_open and state.status == Status.COMPLETED else None,
            **(self.panes(state) if may_open else {}),
        }


def sample_of(state: RunState, mode: str, user: User) -> str | None:
    """Return "is" if the document is a sample of its rule, "may" if it can become one, or None.

    The user must own the task and be allowed to change the rule.
    """
    if state.status != Status.COMPLETED or state.user_id != user.pk or mode not in settings.ETL_POSTPROCESSORS:
        return None
    if not engines.processor(mode).gives_data:
        return None
    is_sample = Exists(Sample.objects.filter(rule=OuterRef("pk"), task=state.task_id))
    rule = catalog.changeable_by(user).filter(pk=state.rule_id).annotate(is_sample=is_sample).only("pk").first()
    return None if rule is None else "is" if rule.is_sample else "may"


def review_of(state: RunState) -> dict[str, Any]:
    """Return the last correction of the result, and the newest review events of all results of the task."""
    rows = ReviewEvent.objects.filter(task_id=state.task_id).select_related("user").defer("change")
    rows = rows.annotate(size=text_size("change")).annotate(
        small_change=Case(When(size__lte=MAX_CHANGE, then=F("change")))
    )
    events: list[Any] = list(rows[: MAX_EVENTS + 1])
    own = [event for event in events if event.run == state.run and event.kind == ReviewEvent.Kind.CORRECTED]
    return {
        "tag": review.tag(state),
        "corrected": own[0] if own and state.review.corrections else None,
        "events": [shown(event, state) for event in events[:MAX_EVENTS]],
        "is_cut": len(events) > MAX_EVENTS,
    }


def shown(event: Any, state: RunState) -> dict[str, Any]:
    """Return the template context of an event of `review_of`."""
    change = event.small_change or {}
    texts = {name: text_of(change[name]) or EMPTY for name in ("before", "after") if name in change}
    if event.size and not change:
        texts = {"after": LARGE}
    return {
        "at": event.created_at,
        "by": event.user.username,
        "what": WORDS[event.kind],
        "pointer": event.pointer if event.size else None,
        "is_earlier": event.run != state.run,
        **texts,
    }


def earlier_of(state: RunState) -> Task | None:
    """Return the earlier task with the same file, unless it was deleted."""
    if state.duplicate_of is None:
        return None
    return Task.objects.filter(pk=state.duplicate_of, user_id=state.user_id).only("filename", "created_at").first()


def pinned_rule(state: RunState) -> tuple[str, str]:
    """Return the name and the mode of the task's version of the rule."""
    try:
        content = catalog.content(rule_id=state.rule_id, version=state.rule_version)
    except UnknownRule:
        return f"Rule {state.rule_id}", ""
    return content.name, content.mode


def owner_of(state: RunState, user: User) -> str:
    """Return the owner's name if staff view another user's document, else ""."""
    if state.user_id == user.pk:
        return ""
    return User.objects.filter(pk=state.user_id).values_list("username", flat=True).first() or ""


def failure_of(state: RunState) -> dict[str, Any] | None:
    if state.status != Status.FAILED or not state.error:
        return None
    return {
        **state.error,
        "explained": explanations.of_error(state.error),
        "has_answer": answer.is_stored(state),
    }


def warnings_of(state: RunState) -> list[dict[str, Any]]:
    warnings: list[dict[str, Any]] = state.metadata["warnings"]
    return sorted(warnings, key=lambda each: (each.get("page") or 0, each["code"]))
