"""The list of a user's documents, newest first."""

from collections.abc import Iterable
from typing import Any

from django.urls import reverse
from rest_framework.request import Request

from config.platform.http.audit import CHANGES
from config.platform.http.paging import chosen
from config.platform.ui.base import Listing, first_page
from etl.api import lookup
from etl.api.search import TaskFilter
from etl.core import completeness
from etl.core.states import Stage, Status
from etl.models import Task
from etl.models.task import STORED, TaskQuerySet
from etl.pages import explanations
from etl.pages.base import DocumentsPage
from etl.pages.form import SubmitForm, limits, quota_left
from etl.runstate import RunState

TABS = {
    "": "All",
    Status.PENDING: "Pending",
    Status.MINERU_PARSING: "MinerU parsing",
    Status.LLM_PROCESSING: "LLM processing",
    Status.COMPLETED: "Completed",
    Status.FAILED: "Failed",
    Status.CANCELLED: "Cancelled",
}
REVIEWS: dict[str, tuple[str, dict[str, bool]]] = {
    "waiting": ("To approve", {"approved": False}),
    "approved": ("Approved", {"approved": True}),
    "corrected": ("Corrected", {"corrected": True}),
}
ORDER = ("-created_at", "-task_id")
RULE = ("rule__json_schema", "rule__system_prompt", "rule__description")  # long fields that are not shown


class DocumentListPage(DocumentsPage):
    """The list and the upload form. The page polls every few seconds while it shows an unfinished document."""

    audited = CHANGES
    template_name = "etl/documents.html"
    fragment_name = "etl/_rows.html"
    title = "Documents"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        wanted, review = self.wanted(), chosen(Request(self.request), "review", among=REVIEWS) or ""
        listing = Listing(self.request, wanted.apply(self.tasks(review)), ordering=ORDER)
        rows = rows_of(listing.rows, wanted.status)
        return super().get_context_data(
            listing=listing,
            rows=rows,
            is_open=any(not row["state"].has_ended for row in rows),
            tabs=[
                *(
                    (label, first_page(self.request, status=name, review=""), name == wanted.status and not review)
                    for name, label in TABS.items()
                ),
                *(
                    (label, first_page(self.request, status="", review=name), name == review)
                    for name, (label, _) in REVIEWS.items()
                ),
            ],
            wanted=wanted,
            review=review,
            wanted_rule=str(wanted.rule_id or ""),
            is_filtered=wanted != TaskFilter() or bool(review),
            query=self.request.GET.urlencode(),
            exported=export_query(wanted),
            here=reverse("documents"),
            **self.form_context(context.pop("form", None)),
            **context,
        )

    def form_context(self, form: Any) -> dict[str, Any]:
        """Return the context of the upload form. The fragment of rows does not need it."""
        if self.fragment_name in self.get_template_names():
            return {}
        form = form or SubmitForm(user=self.user)
        quota = quota_left(self.user.pk)
        return {"form": form, "limits": limits(), "quota": quota, "rules": form.fields["rule_id"].choices[1:]}

    def wanted(self) -> TaskFilter:
        """Return the filters, without the empty fields that the form sends for unused filters."""
        query = {name: str(value) for name, value in self.request.GET.items() if name != "review"}
        given = {name: value for name, value in query.items() if value.strip()}
        return TaskFilter.read(given)

    def tasks(self, review: str) -> TaskQuerySet:
        tasks = Task.objects.filter(user=self.user).reviewed(**(REVIEWS[review][1] if review else {}))
        if review == "waiting":
            tasks = tasks.filter(status=Status.COMPLETED)
        return tasks.select_related("rule").prefetch_related("approved_by").without_results().defer(*RULE)


def export_query(wanted: TaskFilter) -> str:
    """Return the filters that the export form shares with this list, to append to a query string."""
    status = Status.PENDING if wanted.status and wanted.status not in STORED else wanted.status
    filters = {"rule": wanted.rule_id, "status": status, "date_from": wanted.first, "date_to": wanted.last}
    return "".join(f"&{name}={value}" for name, value in filters.items() if value)


def rows_of(tasks: Iterable[Task], status: str) -> list[dict[str, Any]]:
    """Return the rows of a page, without those whose status has changed since the query."""
    rows = list(tasks)
    rules = {task.pk: task.rule.name for task in rows}
    states = [state for state in lookup.states_of_rows(rows) if status in ("", state.status)]
    return [row_of(state, rules[state.task_id]) for state in states]


def row_of(state: RunState, rule: str) -> dict[str, Any]:
    error = state.error if state.status == Status.FAILED else None
    return {
        "state": state,
        "rule": rule,
        "failure": explanations.of_error(error) if error else None,
        "stage": Stage(error["stage"]) if error else None,
        "incomplete": completeness.describe(completeness.incomplete_pages(state.metadata["warnings"])),
        "warnings": len(state.metadata["warnings"]),
    }
