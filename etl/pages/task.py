"""The page of one document: its progress and its result."""

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User

from config.platform.http import staff
from etl.api import lookup, representation
from etl.core import completeness
from etl.core.states import Status
from etl.models import Sample, Task
from etl.pages import explanations, page_images, results
from etl.pages.base import CONTENT_OPENED, TaskPage, rules_for
from etl.pages.steps import steps_of
from etl.pipeline import engines
from etl.runstate import RunState
from rules.library import catalog, requirements
from rules.library.catalog import UnknownRule


class DocumentPage(TaskPage):
    """The page. htmx fetches its fragment on each event until the task has ended."""

    template_name = "etl/document.html"
    fragment_name = "etl/_document.html"

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> Any:
        """Allow images of the object storage, also for an open document: its page shows them when it is read."""
        response = super().render_to_response(context, **kwargs)
        response._csp_update = {"img-src": [page_images.storage_origin()]}  # type: ignore[attr-defined]
        return response

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        state = self.state()
        if state.has_ended:
            lookup.record_reading(state, user=self.user, what=CONTENT_OPENED)
        rule, mode = pinned_rule(state)
        return super().get_context_data(
            title=state.filename,
            state=state,
            owner=owner_of(state, self.user),
            rule=rule,
            lacks_model=requirements.lacks_model(mode),
            steps=steps_of(state, rule=rule),
            failure=failure_of(state),
            warnings=[{**each, "explained": explanations.of_warning(each["code"])} for each in warnings_of(state)],
            incomplete=completeness.describe(completeness.incomplete_pages(state.metadata["warnings"])),
            is_running=not (state.has_ended or state.is_cancellable),
            may_change=staff.may_change(self.user, Task(user_id=state.user_id)),
            events=f"{representation.path_of(state.task_id)}/events",
            **(self.ended(state, mode) if state.has_ended else {}),
            **context,
        )

    def ended(self, state: RunState, mode: str) -> dict[str, Any]:
        default, groups = rules_for(self.user)
        return {
            "default_rule": default,
            "rules": groups,
            "is_rule_there": any(str(state.rule_id) == value for _, choices in groups for value, _ in choices),
            "can_extract": bool(state.markdown_key),
            "has_model": requirements.has_model(),
            "is_sample": Sample.objects.filter(rule=state.rule_id, task=state.task_id).exists(),
            "may_be_sample": may_be_sample(state, mode, self.user),
            "images": page_images.pane(state, first=results.number(self.request, "page") or 1),
            "markdown": results.markdown_pane(state, self.request),
            "json": results.json_pane(state, self.request),
        }


def may_be_sample(state: RunState, mode: str, user: User) -> bool:
    """Return whether the user can add the result to the samples of its rule: both are the user's own."""
    if state.status != Status.COMPLETED or state.user_id != user.pk or mode not in settings.ETL_POSTPROCESSORS:
        return False
    return engines.processor(mode).gives_data and catalog.changeable_by(user).filter(pk=state.rule_id).exists()


def pinned_rule(state: RunState) -> tuple[str, str]:
    """Return the name and the mode of the task's rule in its version."""
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
    return {**state.error, "explained": explanations.of_error(state.error)}


def warnings_of(state: RunState) -> list[dict[str, Any]]:
    warnings: list[dict[str, Any]] = state.metadata["warnings"]
    return sorted(warnings, key=lambda each: (each.get("page") or 0, each["code"]))
