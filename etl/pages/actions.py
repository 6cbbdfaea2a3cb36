"""Actions on one or several documents. Each calls the same function as the API."""

from typing import Any

from django.urls import reverse

from config.platform.http.paging import MAX_LIMIT, whole_number
from config.platform.http.problems import Problem
from config.platform.http.throttling import RateLimited
from config.platform.ui.base import Action, run_each, validated
from etl.api.serializers import RetrySerializer
from etl.core.states import ENDED, Stage, Status
from etl.models import Task
from etl.pages.base import changeable
from etl.pages.listing import ORDER
from etl.pipeline import actions, deletion
from rules.api import rates

ON_PAGE = "On the web page: deleted."


class TaskAction(Action):
    """An action on one task. Responds with 404 to users who may not see the task."""

    throttle = rates.EtlThrottle

    def task(self, task_id: int) -> Task:
        task = changeable(task_id, user=self.user)
        self.record_change(task)
        return task

    def next_url(self, *, task_id: int) -> str:
        return reverse("document", args=[task_id])


class CancelTask(TaskAction):
    def act(self, *, task_id: int) -> str:
        actions.cancel(task=self.task(task_id), is_forced="force" in self.request.POST)
        return "Document cancelled."


class DeleteTask(TaskAction):
    def act(self, *, task_id: int) -> str:
        task = changeable(task_id, user=self.user, verb="delete")
        deletion.delete(task, user=self.user, message=ON_PAGE, is_forced=True)
        return "Document deleted."

    def next_url(self, *, task_id: int) -> str:
        exists = Task.objects.filter(pk=task_id).exists()
        return reverse("document", args=[task_id]) if exists else reverse("documents")


class RetryTask(TaskAction):
    def act(self, *, task_id: int) -> str:
        stage = self.request.POST.get("from_stage", "")
        task = self.task(task_id)
        retry(task, stage=stage, rule_id=self.request.POST.get("rule_id", ""), user=self.user)
        if stage == Stage.POSTPROCESS:
            return "Queued for extraction from the existing text."
        return "Queued for parsing."


def retry(task: Task, *, stage: str, rule_id: str, user: Any) -> None:
    """Retry with the validation of the API. `rule_id`: "" for the task's rule and version. Raises Problem."""
    body = {"from_stage": stage, "rule_id": number_or_text(rule_id)}
    wanted = validated(RetrySerializer, body)
    actions.retry(
        task=task,
        from_stage=wanted["from_stage"],
        rule_content=actions.rule_of(task, wanted.get("rule_id"), user=user),
    )


def number_or_text(text: str) -> int | str | None:
    """Return a form field as a JSON value. Invalid numbers stay text, so that the API refuses them."""
    number = whole_number(text)
    return (text or None) if number is None else number


# ---- Bulk actions ---------------------------------------------------------------------------------------------------
class NothingChanged(Problem):
    status = 409
    code = "nothing_done"
    detail = "Select at least one document first."


class BulkTaskAction(Action):
    """Cancellation, deletion, or retry of the selected documents.

    A refused document does not stop the others, but the rate limit does. The message has the number of successes and
    the reasons for refusals.
    """

    def next_url(self) -> str:
        query = self.request.GET.urlencode()
        return reverse("documents") + (f"?{query}" if query else "")

    def act(self) -> str:
        tasks = self.selected()
        if not tasks:
            raise NothingChanged
        runs = {
            "cancel": (self.cancel, "cancelled"),
            "delete": (self.delete, "deleted"),
            "retry": (self.retry, "queued"),
        }
        action = self.request.POST.get("do", "")
        if action not in runs:
            raise NothingChanged("Choose an action first.")
        run, result = runs[action]
        done, refusals = run_each(tasks, run, stop=RateLimited)
        if not done:
            raise NothingChanged(refusals)
        return f"{done:,} {result}. {refusals}".strip()

    def selected(self) -> list[Task]:
        ids = [number for text in self.request.POST.getlist("task") if (number := whole_number(text))]
        mine = Task.objects.filter(user=self.user, pk__in=ids[:MAX_LIMIT])
        return list(mine.without_results().order_by(*ORDER))

    def cancel(self, task: Task) -> None:
        self.count(rates.EtlThrottle)
        actions.cancel(task=task)

    def delete(self, task: Task) -> None:
        self.count(rates.EtlThrottle)
        deletion.delete(task, user=self.user, message=ON_PAGE)

    def retry(self, task: Task) -> None:
        """Retry from the requested stage, else from the failed stage, else from the start."""
        self.count(rates.EtlThrottle)
        stage = self.request.POST.get("from_stage") or default_stage(task)
        retry(task, stage=stage, rule_id=self.request.POST.get("rule_id", ""), user=self.user)


def default_stage(task: Task) -> str:
    """Return the default stage of a retry. Raises NothingChanged for a completed task."""
    if task.status == Status.COMPLETED:
        raise NothingChanged("The document is completed. Choose the stage to run again.")
    if task.status not in ENDED:
        raise actions.NotEnded
    return str((task.error or {}).get("stage") or Stage.OCR)
