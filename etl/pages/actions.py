"""The buttons of documents: of one, and of several at once. Each calls what the API's request of that name calls."""

from collections import Counter
from typing import Any

from django.urls import reverse

from config.platform.http.paging import MAX_LIMIT
from config.platform.http.problems import Problem
from config.platform.http.throttling import RateLimited
from config.platform.ui.base import Action, told
from etl.api.serializers import MOST, RetrySerializer
from etl.core.states import ENDED, Phase, Status
from etl.models import Task
from etl.pages.base import checked, owned
from etl.pages.listing import ORDER
from etl.pipeline import actions
from rules.api import rates


class TaskAction(Action):
    """A button of a task. A stranger's is 404."""

    throttle = rates.PerUser

    def task(self, task_id: int) -> Task:
        self.touched = task = owned(task_id, user=self.user)
        return task

    def then(self, *, task_id: int) -> str:
        return reverse("document", args=[task_id])

    def act(self, *, task_id: int) -> str:
        raise NotImplementedError


class Cancel(TaskAction):
    def act(self, *, task_id: int) -> str:
        actions.cancel(task=self.task(task_id))
        return "Cancelled. Nothing of it was read."


class Retry(TaskAction):
    def act(self, *, task_id: int) -> str:
        stage = self.request.POST.get("from_stage", "")
        task = self.task(task_id)
        retry(task, stage=stage, rule_id=self.request.POST.get("rule_id", ""), user=self.user)
        if stage == Phase.POSTPROCESS:
            return "It is extracted again from the text that is there; the document is not read again."
        return "It is read again from the beginning."


def retry(task: Task, *, stage: str, rule_id: str, user: Any) -> None:
    """Retry by the very body that the API takes. `rule_id`: "" for the rule that it had. Raises Problem."""
    body = {"from_stage": stage, "rule_id": number_or_text(rule_id)}
    wanted = checked(RetrySerializer(data=body))
    actions.retry(
        task=task,
        from_stage=wanted["from_stage"],
        rule_content=actions.rule_of(task, wanted.get("rule_id"), user=user),
    )


def number_or_text(text: str) -> int | str | None:
    """Return a form's field as JSON has it; what is no number stays what it is, for the API to refuse."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MOST))
    return int(text) if is_number else (text or None)


# ---- Several at once ------------------------------------------------------------------------------------------------
class NothingDone(Problem):
    status = 409
    code = "nothing_done"
    detail = "Select at least one document first."


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
        mine = Task.objects.filter(user=self.user, pk__in=ids[:MAX_LIMIT])
        return list(mine.defer("result").order_by(*ORDER))

    def cancel(self, task: Task) -> None:
        actions.cancel(task=task)

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
        raise actions.NotEnded
    return str((task.error or {}).get("stage") or Phase.OCR)
