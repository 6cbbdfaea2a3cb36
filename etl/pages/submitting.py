"""Document upload by a plain form. With JavaScript, files go to the API, in parallel and with progress."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from django.contrib import messages
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import User
from django.core.files.uploadhandler import FileUploadHandler
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
from etl.pages.base import DocumentsPage
from etl.pages.form import SubmitForm
from etl.pages.listing import DocumentListPage


class SubmissionPage(DocumentsPage):
    """The page that handles a submitted form: redirects to the new task or batch, or shows the form with its errors."""

    http_method_names = ("post",)
    form: type[SubmitForm]

    def post(self, request: HttpRequest) -> HttpResponseBase:
        form = self.form(request.POST, request.FILES, user=self.user)
        form.full_clean()
        form.errors.clear()  # replaced by the API's errors
        try:
            self.count()
            return self.create()
        except Problem as problem:
            show_in(form, problem, fields=lambda pointer: pointer.split("/")[1] if pointer else None)
            response: HttpResponse = self.render_to_response(self.get_context_data(form=form))
            response.status_code = problem.status
            return response

    def create(self) -> HttpResponse:
        """Create the task or batch of the form, and redirect to it. Raises the Problems of the submission."""
        raise NotImplementedError


class UploadHandlerView(LoginRequiredMixin, View):
    """A view that sets the upload handler, which limits the body, before `view` reads the form and its CSRF token.

    Subclasses are exempt from the CSRF check of the middleware, since that check reads the body.
    """

    handler: Callable[[HttpRequest], FileUploadHandler]
    view: type[SubmissionPage]
    home: str  # name of the URL to return to

    def post(self, request: HttpRequest) -> HttpResponseBase:
        request.upload_handlers = [type(self).handler(request)]
        try:
            return self.view.as_view()(request)
        except Problem as problem:  # the body is too large, or the disk is full
            messages.error(request, problem_text(problem))
            return redirect(self.home)


# ---- One document ---------------------------------------------------------------------------------------------------
@method_decorator(csrf_protect, name="dispatch")
class SubmittedDocument(SubmissionPage, DocumentListPage):
    form = SubmitForm

    def create(self) -> HttpResponse:
        task = submit(self.request, self.user)
        messages.success(self.request, "Document uploaded. This page shows its progress.")
        return redirect("document", task_id=task.pk)


@method_decorator(csrf_exempt, name="dispatch")
class SubmitDocument(UploadHandlerView):
    """`POST /app/documents/submit`."""

    handler, view, home = BoundedFile, SubmittedDocument, "documents"


def submit(request: HttpRequest, user: User) -> Task:
    """Create a task from the form. Raises the Problems of `submission.submit`."""
    body = {name: value for name, value in (("rule_id", request.POST.get("rule_id")), *request.FILES.items()) if value}
    wanted = validated(SubmitFileSerializer, body)
    document, rule_id = uploads.SentFile(wanted["file"]), wanted.get("rule_id")
    once = idempotency_of(request, {**document.identity(), "rule_id": rule_id})
    task, _replayed = submission.submit(
        document, user=user, rule_id=rule_id, request_id=request_id(request), idempotency=once
    )
    return task


def idempotency_of(request: HttpRequest, body: dict[str, Any]) -> Idempotency:
    """Return the idempotency key of the form and its content. The same form with another file has another key."""
    body_fingerprint = fingerprint(body)
    form = uuid_of(request.POST.get("once", "")) or uuid4()
    return Idempotency(key=f"form-{form}-{body_fingerprint[:32]}", fingerprint=body_fingerprint)
