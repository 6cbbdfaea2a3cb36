"""Document upload by a plain form. With JavaScript, files go to the API, in parallel and with progress."""

from typing import Any, cast
from uuid import uuid4

from django.contrib import messages
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.generic import View

from config.platform.http.idempotency import Idempotency, fingerprint
from config.platform.http.problems import Problem
from config.platform.http.request_context import request_id
from config.platform.ui.base import problem_text, show_in, uuid_of, validated
from etl.api.serializers import SubmitFileSerializer
from etl.ingest import submission, uploads
from etl.ingest.multipart import BoundedFile
from etl.models import Task
from etl.pages.form import SubmitForm
from etl.pages.listing import DocumentListPage


# ---- The plain form -------------------------------------------------------------------------------------------------
@method_decorator(csrf_exempt, name="dispatch")  # the CSRF check reads the body, so the size limit must be set before
class SubmitDocument(LoginRequiredMixin, View):
    """`POST /app/documents/submit`."""

    def post(self, request: HttpRequest) -> HttpResponseBase:
        request.upload_handlers = [BoundedFile(request)]
        try:
            return cast("HttpResponseBase", SubmittedDocument.as_view()(request))
        except Problem as problem:  # the body is too large, or the disk is full
            messages.error(request, problem_text(problem))
            return redirect("documents")


@method_decorator(csrf_protect, name="dispatch")
class SubmittedDocument(DocumentListPage):
    """Redirect to the new task, or show the form with its errors."""

    http_method_names = ("post",)

    def post(self, request: HttpRequest) -> HttpResponseBase:
        form = SubmitForm(request.POST, request.FILES, user=self.user)
        form.full_clean()
        form.errors.clear()  # replaced by the API's errors
        try:
            self.count()
            task = submit(request, self.user)
        except Problem as problem:
            show_in(form, problem, fields=lambda pointer: pointer[1:])
            response: HttpResponse = self.render_to_response(self.get_context_data(form=form))
            response.status_code = problem.status
            return response
        messages.success(request, "Document uploaded. This page shows its progress.")
        return redirect("document", task_id=task.pk)


def submit(request: HttpRequest, user: User) -> Task:
    """Create a task from the form. Raises the Problems of `submission.submit`."""
    body = {name: value for name, value in (("rule_id", request.POST.get("rule_id")), *request.FILES.items()) if value}
    wanted = validated(SubmitFileSerializer, body)
    document, rule_id = uploads.SentFile(wanted["file"]), wanted.get("rule_id")
    once = once_of(request, {**document.identity(), "rule_id": rule_id})
    task, _replayed = submission.submit(
        document, user=user, rule_id=rule_id, request_id=request_id(request), idempotency=once
    )
    return task


def once_of(request: HttpRequest, body: dict[str, Any]) -> Idempotency:
    """Return the idempotency key of the form and its content: another file in the same form is another document."""
    print_of_body = fingerprint(body)
    form = uuid_of(request.POST.get("once", "")) or uuid4()
    return Idempotency(key=f"form-{form}-{print_of_body[:32]}", fingerprint=print_of_body)
