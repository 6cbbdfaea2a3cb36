"""Results of a document: Markdown and JSON panes, and downloads."""

import re
from dataclasses import replace
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase

from config.platform import exact_json, storage
from config.platform.http import staff
from config.platform.http.audit import OPENS_DATA
from config.platform.http.problems import NotFound, Problem, require_first
from config.platform.ui.base import api_request
from etl.api import answer, lookup, markdown
from etl.core.formats import DocumentFormat
from etl.core.states import Status
from etl.ingest import acceptance
from etl.models import Task
from etl.pages import invoices, sheets, tree
from etl.pages.base import UNKNOWN, DocumentsPage, TaskPage, visible, visible_state
from etl.pipeline import artifacts
from etl.providers.base import LOW_CONFIDENCE
from etl.runstate import RunState

NUMBER = re.compile(r"[0-9]{1,7}")  # of a page, a piece, or a member
RAW_BYTES = 200_000  # of JSON shown as text; larger results are download only
DOWNLOAD_SECONDS = 60  # validity of a presigned URL: the download must start, not end, in this time


# ---- Markdown -------------------------------------------------------------------------------------------------------
class SheetsFragment(TaskPage):
    """Pages of the Markdown for htmx, fetched when they scroll into view or a citation links to them."""

    audited = OPENS_DATA
    template_name = "etl/_sheets.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        state = with_previous_text(self.content_state())
        if not state.markdown_key:
            raise markdown.NotReady
        query = self.request.GET
        # Pages that were fetched above or below others have a "more" link only in that direction.
        directions = {"is_above": "at" not in query, "is_below": "before" not in query}
        return super().get_context_data(**context | sheets_of(state, self.request) | directions)


def with_previous_text(state: RunState) -> RunState:
    """Return the state. While the document is parsed again, it refers to the text of the previous result."""
    if state.markdown_key or state.has_ended:
        return state
    key = (lookup.previous_result(state) or {}).get("markdown_s3_key") or ""
    found = artifacts.run_folder(key)
    return replace(state, markdown_key=key, ocr_run=found.run) if found else state


def markdown_pane(state: RunState, request: HttpRequest) -> dict[str, Any]:
    """Return the Markdown pane: the first pages, or those from `?page=` on, or the reason why it is empty."""
    if not state.markdown_key:
        return {"missing": "No text: the document was not parsed."}
    try:
        return sheets_of(state, request)
    except Problem as problem:
        return {"missing": problem.detail}


def sheets_of(state: RunState, request: HttpRequest) -> dict[str, Any]:
    raw = request.GET.get("view") == "source"
    found = sheets.load(
        state.markdown_key,
        at=number(request, "at") or 0,
        page=number(request, "page"),
        before=number(request, "before"),
        raw=raw,
    )
    by_page = confidences(state)
    return {
        "stack": found,
        "sheets": [(sheet, by_page.get(sheet.piece.page)) for sheet in found.sheets],
        "raw": raw,
        "more": "&view=source" if raw else "",
        "task_id": state.task_id,
        "is_above": True,
        "is_below": True,
    }


def confidences(state: RunState) -> dict[int, dict[str, Any]]:
    """Return the OCR confidence of each recognized page, in percent."""
    try:
        stored = artifacts.find_ocr(state)
    except storage.StorageError:
        return {}  # show the text without confidences
    pages = stored.facts["pages"] if stored else []
    return {
        page["number"]: {"percent": round(page["confidence"] * 100), "is_low": page["confidence"] < LOW_CONFIDENCE}
        for page in pages
        if page.get("confidence") is not None
    }


def number(request: HttpRequest, name: str) -> int | None:
    text = request.GET.get(name, "")
    return int(text) if NUMBER.fullmatch(text) else None


# ---- JSON -----------------------------------------------------------------------------------------------------------
class BranchFragment(TaskPage):
    """A part of the tree for htmx: `?node=` is its JSON Pointer, `&from=` the index of the first member to show."""

    audited = OPENS_DATA
    template_name = "etl/_branch.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        state = self.content_state()
        output = output_of(state)
        if "data" not in output:
            raise NotFound
        return super().get_context_data(node=tree_of(output, self.request), **context)  # `task_id` is from the path


def json_pane(state: RunState, request: HttpRequest) -> dict[str, Any]:
    """Return the JSON pane: a tree or text, or the reason why it is empty."""
    if state.status != Status.COMPLETED and not state.previous_run:
        return {"missing": "No result."}
    try:
        output = output_of(state)
        if "data" not in output:
            return {"is_markdown_only": True}
        pane: dict[str, Any] = {
            "invoice": invoices.view_of(output),
            "node": tree_of(output, request),
            "pointer": request.GET.get("node", ""),
            "levels": tree.legend(),
        }
        if state.status != Status.COMPLETED:
            pane["of_earlier_run"] = output["metadata"].get("provenance", {})
    except Problem as problem:
        return {"missing": problem.detail}
    pane["raw"] = request.GET.get("json") == "raw"
    pane["shows_invoice"] = bool(pane["invoice"]) and not (request.GET.get("json") or pane["pointer"])
    if pane["raw"]:
        text = exact_json.dumps(output["data"], indent=True)
        pane |= {"text": text.decode() if len(text) <= RAW_BYTES else "", "size": len(text)}
    return pane


def tree_of(output: dict[str, Any], request: HttpRequest) -> tree.Node:
    sources = None if invoices.is_exact(output) else {each["pointer"]: each for each in output.get("citations") or []}
    return tree.build(output["data"], sources, at=request.GET.get("node", ""), start=number(request, "from") or 0)


def output_of(state: RunState) -> dict[str, Any]:
    """Return the result with its corrections. Until a retry completes, this is the result of the previous run.

    Raises NotFound for a task without a result, and StorageUnavailable.
    """
    if state.status == Status.COMPLETED:
        run = state.run
    elif state.previous_run:
        run = state.previous_run
    else:
        raise NotFound
    with acceptance.translate_storage_errors():
        stored = artifacts.find(artifacts.output_key(replace(state, run=run)))
    if stored and run == state.run and not state.review.corrections:
        return stored
    row = require_first(Task.objects.filter(pk=state.task_id), NotFound(UNKNOWN))
    stored = stored or (row.last_result if row.last_result_run == run else row.result)
    return row.corrected(stored, run=run) or {}


# ---- Downloads ------------------------------------------------------------------------------------------------------
class ResultDownload(DocumentsPage):
    """Download of a result under the document's name, as an attachment, so that no browser renders it on our origin."""

    audited = OPENS_DATA
    extension: str

    def get(self, request: HttpRequest, *, task_id: int) -> HttpResponseBase:  # type: ignore[override]
        self.count()
        state = visible_state(task_id, user=self.user)
        lookup.record_access(state, user=self.user, message=f"On the web page: downloaded the {self.extension} file.")
        response = self.content(state)
        name = f"{state.filename.rpartition('.')[0] or state.filename}.{self.extension}"
        response["Content-Disposition"] = storage.content_disposition(name)
        response["Cache-Control"] = "no-store"
        return response

    def content(self, state: RunState) -> HttpResponseBase:
        raise NotImplementedError


class DocumentGone(Problem):
    status = 410
    title = "The document is gone"
    code = "artifact_missing"
    detail = "The original document is no longer stored. Submit it again to view it here."


class OriginalDownload(DocumentsPage):
    """Redirect to the original document in the object storage, by a presigned URL."""

    audited = OPENS_DATA

    def get(self, request: HttpRequest, *, task_id: int) -> HttpResponse:
        self.count()
        task = visible(task_id, user=self.user)
        staff.record_access(self.user, task, "On the web page: downloaded the original document.")
        with acceptance.translate_storage_errors():
            if storage.head(task.document_key) is None:
                raise DocumentGone
        kind = DocumentFormat(task.kind)
        url = storage.presign_download(
            task.document_key,
            seconds=DOWNLOAD_SECONDS,
            content_type=kind.media_type,
            file_name=task.filename or f"document.{kind.value}",
        )
        return HttpResponseRedirect(url, headers={"Cache-Control": "no-store"})


class MarkdownDownload(ResultDownload):
    extension = "md"

    def content(self, state: RunState) -> HttpResponseBase:
        if not state.markdown_key:
            raise markdown.NotReady
        return markdown.stream_artifact(state.markdown_key, api_request(self.request))


class JsonDownload(ResultDownload):
    extension = "json"

    def content(self, state: RunState) -> HttpResponseBase:
        output = output_of(state)
        if "data" not in output:
            raise NotFound
        return HttpResponse(exact_json.dumps(output["data"], indent=True), content_type=artifacts.JSON)


class AnswerDownload(ResultDownload):
    """The language model's response that made the task fail."""

    extension = "answer.txt"

    def content(self, state: RunState) -> HttpResponseBase:
        key = answer.find(state)
        if not key:
            raise answer.NoAnswer
        return markdown.stream_artifact(key, api_request(self.request), content_type=artifacts.TEXT)
