"""The page for correcting the data of a result, and the actions that approve it or remove the approval."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from config.platform.http import staff
from config.platform.http.audit import OPENS_DATA
from config.platform.http.problems import NotFound, Problem, require_first
from config.platform.ui.base import problem_text
from etl.core.json_changes import ABSENT, pairs
from etl.core.states import Status
from etl.models import Task
from etl.pages import page_images, results
from etl.pages.actions import TaskAction
from etl.pages.base import CONTENT_OPENED, UNKNOWN, TaskPage, changeable
from etl.pages.edit_form import EditForm, text_of
from etl.pages.results import number
from etl.pipeline import review
from etl.runstate import RunState
from rules.library import catalog

MAX_UNSAVED = 20  # entered values to show if another user has changed the result in the meantime


class EditPage(TaskPage):
    """The form of the data, beside the pages of the document. Works without JavaScript."""

    audited = OPENS_DATA
    template_name = "etl/edit.html"
    http_method_names = ("get", "post")

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        row = context.pop("row", None) or self.row()
        state = RunState.of_row(row)
        form = context.pop("form", None) or self.form(row)
        page = next((each.source["page"] for each in form.root.all if each.source), 1)
        images = page_images.pane(state, first=number(self.request, "page") or page)
        return super().get_context_data(
            title=f"Correct {state.filename}",
            state=state,
            tag=context.pop("tag", review.tag(state)),
            form=form,
            images=images,
            markdown=None if images else results.markdown_pane(state, self.request),
            **context,
        )

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        return page_images.allow_images(super().render_to_response(context, **kwargs))

    def post(self, request: HttpRequest, *, task_id: int) -> HttpResponse:
        """Save, add a row to a list, or show the errors."""
        row = self.row()
        form = self.form(row, posted=True)
        try:
            self.count()
            if "add" in request.POST:
                return self.shown(row, form)
            self.save(row, form)
        except review.Stale:
            return self.stale(form)
        except Problem as problem:
            self.explain(problem, form)
            return self.shown(row, form, status=problem.status)
        return redirect(f"{reverse('document', args=[task_id])}#json")

    def save(self, row: Task, form: EditForm) -> None:
        """Save a correction. Raises Stale before SchemaMismatch, because errors in outdated data are meaningless."""
        tag = self.request.POST.get("tag", "")
        review.require_match(tag, review.tag(RunState.of_row(row)))
        if form.has_errors:
            raise review.SchemaMismatch
        with staff.recorded(self.user, row, "On the web page: corrected the result."):
            saved = review.correct(row, lambda _: form.entered, user=self.user, if_match=tag)
        if "approve" not in self.request.POST:
            messages.success(self.request, "Correction saved.")
            return
        try:
            with staff.recorded(self.user, row, "On the web page: approved the result."):
                review.approve(saved, user=self.user, if_match=review.tag(RunState.of_row(saved)))
        except Problem as problem:
            messages.warning(self.request, f"Correction saved, but not approved. {problem_text(problem)}")
        else:
            messages.success(self.request, "Correction saved and result approved.")

    def explain(self, problem: Problem, form: EditForm) -> None:
        if not isinstance(problem, review.SchemaMismatch):
            messages.error(self.request, problem_text(problem))
            return
        for error in problem.errors:
            form.add_error(error.pointer.removeprefix("/data"), error.detail)

    def shown(self, row: Task, form: EditForm, *, status: int = 200, **context: Any) -> HttpResponse:
        """Show the form again with the submitted tag: the entered values belong to that version of the result."""
        context = {"tag": self.request.POST.get("tag", ""), **context}
        return self.render_to_response(self.get_context_data(row=row, form=form, **context), status=status)

    def stale(self, form: EditForm) -> HttpResponse:
        """Show the current data, and the entered values that differ from it and were not saved."""
        row = self.row()
        differences = pairs((row.current_result or {})["data"], form.entered)
        entered = [pair for pair in differences if pair.is_change and pair.after is not ABSENT]
        unsaved = [(pair.pointer, text_of(pair.after)) for pair in entered[:MAX_UNSAVED]]
        tag = review.tag(RunState.of_row(row))
        return self.shown(row, self.form(row), status=review.Stale.status, tag=tag, unsaved=unsaved, is_stale=True)

    def row(self) -> Task:
        """Return the row of a completed task with data. Raises NotFound, NotPermitted, NotCompleted, and NoData."""
        rows = Task.objects.visible_to(self.user).filter(pk=self.kwargs["task_id"])
        row = require_first(rows, NotFound(UNKNOWN))
        staff.require_change(self.user, row)
        if row.status != Status.COMPLETED:
            raise review.NotCompleted
        if "data" not in (row.current_result or {}):
            raise review.NoData
        staff.record_access(self.user, row, CONTENT_OPENED)
        return row

    def form(self, row: Task, *, posted: bool = False) -> EditForm:
        result: dict[str, Any] = row.current_result or {}
        schema = catalog.content(rule_id=row.rule_id, version=row.rule_version).json_schema
        return EditForm(
            schema or {},
            result["data"],
            {each["pointer"]: each for each in result.get("citations") or []},
            at=self.request.GET.get("at", ""),
            first=number(self.request, "from") or 0,
            posted=self.request.POST if posted else None,
            add=self.request.POST.get("add") if posted else None,
        )


class ReviewAction(TaskAction):
    """An action on a result, which requires that the user may open it."""

    def task(self, task_id: int) -> Task:
        staff.require_data(self.user, changeable(task_id, user=self.user).user_id)
        return super().task(task_id)


class ApproveResult(ReviewAction):
    def act(self, *, task_id: int) -> str:
        review.approve(self.task(task_id), user=self.user, if_match=self.request.POST.get("tag"))
        return "Result approved."


class RemoveApproval(ReviewAction):
    def act(self, *, task_id: int) -> str:
        review.remove_approval(self.task(task_id), user=self.user)
        return "Approval removed."
