"""My documents: the list, newest first, and what may be done to several at once."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from django.db.models import QuerySet
from django.urls import reverse
from rest_framework.request import Request

from config.api.paging import chosen
from config.api.problems import Problem
from config.api.throttling import RateLimited
from config.pages.base import Action, Listing, told
from etl import control, explanations, lookup
from etl.models import Task
from etl.pages.base import DocumentsPage, checked
from etl.pages.form import SubmitForm, limits
from etl.runstate import RunState
from etl.serializers import MOST, RetrySerializer
from etl.states import ENDED, Phase, Status
from etl.views import rule_of
from rules import rates

MOST_CHOSEN = 200  # as many as one page of a list has at most
TABS = {
    "": "All",
    Status.PENDING: "Pending",
    Status.MINERU_PARSING: "Reading",
    Status.LLM_PROCESSING: "Extracting",
    Status.COMPLETED: "Completed",
    Status.FAILED: "Failed",
    Status.CANCELLED: "Cancelled",
}
ORDER = ("-created_at", "-task_id")
RULE = ("rule__json_schema", "rule__system_prompt", "rule__description")  # what may be long, and is not shown


class Documents(DocumentsPage):
    """The list, and the form. While one of those shown is open, the rows are fetched again every few seconds."""

    template_name = "etl/documents.html"
    fragment_name = "etl/_rows.html"
    title = "Documents"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        status = chosen(Request(self.request), "status", among=Status.values) or ""
        listing = Listing(self.request, self.tasks(status), ordering=ORDER)
        rows = rows_of(listing.rows or [], status)
        return super().get_context_data(
            listing=listing,
            rows=rows,
            is_open=any(not row["state"].has_ended for row in rows),
            tabs=TABS,
            status=status,
            query=self.request.GET.urlencode(),
            **self.form_context(context.pop("form", None)),
            **context,
        )

    def form_context(self, form: Any) -> dict[str, Any]:
        """The rows are fetched without the form around them."""
        if self.fragment_name in self.get_template_names():
            return {}
        form = form or SubmitForm(user=self.user)
        return {"form": form, "limits": limits(), "rules": form.fields["rule_id"].choices[1:]}

    def tasks(self, status: str) -> QuerySet[Task]:
        tasks = Task.objects.filter(user=self.user).select_related("rule").defer("result", *RULE)
        return lookup.with_status(tasks, status) if status else tasks


def rows_of(tasks: Iterable[Task], status: str) -> list[dict[str, Any]]:
    """Return the rows of a page. One may have moved on while it was read: then it is not among those of a status."""
    rows = list(tasks)
    rules = {task.pk: task.rule.name for task in rows}
    states = [state for state in lookup.shown(rows) if status in ("", state.status)]
    return [row_of(state, rules[state.task_id]) for state in states]


def row_of(state: RunState, rule: str) -> dict[str, Any]:
    error = state.error if state.status == Status.FAILED else None
    return {
        "state": state,
        "rule": rule,
        "failure": explanations.of_error(error) if error else None,
        "stage": Phase(error["stage"]) if error else None,
        "warnings": len(state.metadata["warnings"]),
    }


# ---- Several at once ------------------------------------------------------------------------------------------------
class NothingDone(Problem):
    """Choose documents first."""

    status = 409
    code = "nothing_done"


class Several(Action):
    """Cancel or retry what was chosen: each as if alone. It is told how many were, and why the others were not."""

    def then(self) -> str:
        query = self.request.GET.urlencode()
        return reverse("documents") + (f"?{query}" if query else "")

    def act(self) -> str:
        tasks = self.chosen()
        if not tasks:
            raise NothingDone
        verb, word = (
            (self.cancel, "cancelled") if self.request.POST.get("do") == "cancel" else (self.retry, "started again")
        )
        left: Counter[str] = Counter()
        for number, task in enumerate(tasks):
            try:
                self.count(rates.PerUser)
                verb(task)
            except RateLimited as problem:
                left[told(problem)] += len(tasks) - number
                break
            except Problem as problem:
                left[told(problem)] += 1
        return self.tell(len(tasks) - left.total(), word, left)

    def chosen(self) -> list[Task]:
        ids = [
            int(text)
            for text in self.request.POST.getlist("task")
            if text.isascii() and text.isdecimal() and len(text) < len(str(MOST))
        ]
        mine = Task.objects.filter(user=self.user, pk__in=ids[:MOST_CHOSEN])
        return list(mine.defer("result").order_by(*ORDER))

    def cancel(self, task: Task) -> None:
        control.cancel(task=task)

    def retry(self, task: Task) -> None:
        """Without a stage: from the one that failed; and of what was cancelled, all."""
        stage = self.request.POST.get("from_stage") or stage_of(task)
        retry(task, stage=stage, rule_id=self.request.POST.get("rule_id", ""), user=self.user)

    def tell(self, done: int, word: str, left: Counter[str]) -> str:
        why = " ".join(f"{number:,} left alone: {reason}" for reason, number in left.items())
        if not done:
            raise NothingDone(why)
        return f"{done:,} {word}. {why}".strip()


def stage_of(task: Task) -> str:
    """Return from where a task is retried when nobody says. Raises NothingDone for one that has a result."""
    if task.status == Status.COMPLETED:
        raise NothingDone("It is completed. Say from which stage to run it again.")
    if task.status not in ENDED:
        raise control.NotEnded
    return str((task.error or {}).get("stage") or Phase.OCR)


def retry(task: Task, *, stage: str, rule_id: str, user: Any) -> None:
    """Retry by the very body that the API takes. `rule_id`: "" for the rule that it had. Raises Problem."""
    body = {"from_stage": stage, "rule_id": number_in(rule_id)}
    wanted = checked(RetrySerializer(data=body))
    control.retry(
        task=task,
        from_stage=wanted["from_stage"],
        rule_content=rule_of(task, wanted.get("rule_id"), user=user),
    )


def number_in(text: str) -> int | str | None:
    """Return a form's field as JSON has it; what is no number stays what it is, for the API to refuse."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MOST))
    return int(text) if is_number else (text or None)
