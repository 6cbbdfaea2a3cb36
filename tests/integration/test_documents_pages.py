"""C1: the pages of documents in a browser without JavaScript: visibility, queries, and refusals."""

import ast
import html
import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx2
import pytest
from django.conf import LazySettings, settings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from config.platform import storage
from etl import runstate
from etl.api import lookup
from etl.core import errors
from etl.core.stage_context import USAGE_INCOMPLETE
from etl.core.states import Stage
from etl.models import Task
from etl.pages import explanations, sheets, tree
from etl.pipeline import artifacts, completion
from etl.postprocessors.repeats import REPEATED
from etl.providers.base import page_marker
from etl.providers.local.provider import OFFICE_WARNINGS
from rules.models import Rule
from tests.broker import valkey
from tests.browser import scenes_documents as scenes
from tests.conftest import browser_of, change_settings
from tests.integration.etl_factories import make_row, make_rule, make_task
from tests.integration.etl_progress import begin, complete, fail
from tests.integration.test_rules_pages import queries

LIST = "/app/documents"
SUBMIT = f"{LIST}/submit"
RTF = rb"{\rtf1\ansi A letter.}"


@pytest.fixture(autouse=True)
def _empty(transactional_db: None) -> None:
    valkey().flushdb()
    lookup.breaker_of.cache_clear()
    sheets.index.cache_clear()


@pytest.fixture
def client(alice: User) -> Client:
    return browser_of(alice)


def path(task: Task, *rest: str) -> str:
    return "/".join((LIST, str(task.pk), *rest))


def text(response: Any) -> str:
    assert response.status_code == 200, response.content
    return html.unescape(response.content.decode())


def followed(client: Client, url: str, **fields: Any) -> str:
    return text(client.post(url, fields, follow=True))


def file(content: bytes = b"Hello.", name: str = "a.txt") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content)


def invoice(user: User) -> Task:
    scenes.completed(user)
    return Task.objects.latest("task_id")


# ---- Visibility -----------------------------------------------------------------------------------------------------
PARTS = ("", "pages", "branch", "original", "markdown", "json")
ACTIONS = ("cancel", "retry")


def test_documents_of_other_users_return_404(alice: User, bob: User) -> None:
    task, other = invoice(alice), browser_of(bob)
    for part in PARTS:
        url = path(task, part).rstrip("/")
        assert other.get(url).status_code == 404, url
        assert other.get(url.replace(str(task.pk), str(10**30))).status_code == 404, url
    for action in ACTIONS:
        assert other.post(path(task, action), {"from_stage": "ocr"}).status_code == 404, action
    assert "invoice-0417.pdf" not in text(other.get(LIST))
    assert Task.objects.get().status == "completed"


def test_staff_see_every_document_and_its_owner(alice: User, pages: Client) -> None:
    task = invoice(alice)
    assert "requested by alice" in text(pages.get(path(task)))
    assert "invoice-0417.pdf" not in text(pages.get(LIST))  # the list only has the user's own documents


def test_visitors_without_a_session_are_redirected_to_sign_in(alice: User) -> None:
    task = invoice(alice)
    for url in (LIST, *(path(task, part).rstrip("/") for part in PARTS)):
        assert Client().get(url)["Location"].startswith("/app/sign-in"), url
    for url in (SUBMIT, f"{LIST}/several", path(task, "cancel")):
        assert Client().post(url)["Location"].startswith("/app/sign-in"), url


def test_changes_require_a_post_with_a_csrf_token(alice: User) -> None:
    task = make_task(alice)
    client = browser_of(alice, enforce_csrf_checks=True)
    for url in (SUBMIT, f"{LIST}/several", path(task, "cancel"), path(task, "retry")):
        assert client.get(url).status_code == 405, url
        assert client.post(url, {"file": file(), "task": task.pk, "do": "cancel"}).status_code == 403, url
    assert list(Task.objects.values_list("status", flat=True)) == ["pending"]
    client.get(LIST)
    token = client.cookies["csrftoken"].value
    sent = client.post(SUBMIT, {"file": file(), "csrfmiddlewaretoken": token})
    assert (sent.status_code, Task.objects.count()) == (302, 2)


def test_page_requests_count_toward_the_api_rate_limits(settings: LazySettings, alice: User) -> None:
    task, client = make_task(alice), browser_of(alice)
    change_settings(settings, etl_rate="1/min", etl_poll_rate="2/min")
    assert "Document cancelled" in followed(client, path(task, "cancel"))  # which redirects to a GET
    assert client.get(LIST).status_code == 200
    assert client.get(LIST).status_code == 429
    assert client.get(path(task, "json")).status_code == 429
    change_settings(settings, etl_rate="1/min", etl_poll_rate="100/min")
    assert "Too many requests" in followed(client, path(task, "retry"), from_stage="ocr")
    refused = client.post(SUBMIT, {"file": file()})
    assert (refused.status_code, "Too many requests" in refused.content.decode()) == (429, True)
    assert Task.objects.get().status == "cancelled"


# ---- Queries --------------------------------------------------------------------------------------------------------
def test_a_page_shows_when_its_document_is_deleted(client: Client, alice: User, settings: LazySettings) -> None:
    """B34: the time comes from the request or, by default, from the operator's setting."""
    task = make_task(alice, created_at=datetime(2026, 3, 1, 9, 15, tzinfo=UTC))
    complete(task)
    assert "kept until" not in text(client.get(path(task)))
    change_settings(settings, etl_retention_days=30)
    assert "kept until 2026-03-31 09:15 UTC" in text(client.get(path(task)))
    Task.objects.filter(pk=task.pk).update(expires_at=datetime(2027, 1, 31, 12, tzinfo=UTC))
    assert "kept until 2027-01-31 12:00 UTC" in text(client.get(path(task)))


@pytest.mark.slow
def test_the_number_of_queries_does_not_grow_with_the_list(client: Client, alice: User) -> None:
    rule = make_rule(alice)
    running = make_task(alice, rule=rule)
    begin(running)
    make_task(alice, rule=rule)
    few = queries(client, LIST), queries(client, f"{LIST}?status=pending")
    for number in range(60):
        make_row(alice, rule=make_rule(alice) if number % 9 == 0 else rule)
    assert (queries(client, f"{LIST}?limit=200"), queries(client, f"{LIST}?status=pending&limit=200")) == few


def test_polling_the_rows_takes_few_queries(client: Client, alice: User) -> None:
    begin(make_task(alice))
    with CaptureQueriesContext(connection) as captured:
        rows = text(client.get(LIST, headers={"HX-Request": "true"}))
    assert len(captured) <= 3  # the session, its user, the rows
    assert "MinerU parsing" in rows
    assert "<form" not in rows


def test_large_results_are_not_read_for_the_task_page(client: Client, alice: User) -> None:
    task = invoice(alice)
    with CaptureQueriesContext(connection) as captured:
        text(client.get(path(task)))
    assert not [query["sql"] for query in captured if '"etl_task"."result"' in query["sql"]]
    assert len(captured) <= 10  # one inserts the audit entry, and one reads the task's deletion time


# ---- Submitting -----------------------------------------------------------------------------------------------------
def test_the_form_shows_limits_and_rules(client: Client, alice: User, bob: User) -> None:
    make_rule(alice, name="Invoices of mine")
    make_rule(bob, name="Invoices of theirs")
    page = text(client.get(LIST))
    assert "ODP, ODS, EPUB, HTML, email, CSV and XML. Up to 52.4 MB and 500 pages each." in page
    assert "Default: Default" in page
    assert "Invoices of mine" in page
    assert "Invoices of theirs" not in page


def test_a_repeated_form_creates_one_task(client: Client, alice: User) -> None:
    rule = make_rule(alice)
    once = re.findall(r'name="once" value="([^"]+)"', text(client.get(LIST)))[0]
    for content in (b"Hello.", b"Hello.", b"Another."):
        page = followed(client, SUBMIT, file=file(content), rule_id=rule.pk, once=once)
        assert "a.txt" in page
    assert list(Task.objects.values_list("rule_id", flat=True)) == [rule.pk] * 2


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({}, 400, "No file was submitted."),
        ({"file": file(b"")}, 400, "The document is empty (0 bytes)."),
        ({"file": file(RTF, "a.rtf")}, 415, "The file type is RTF."),
        ({"file": file(), "rule_id": "10"}, 400, "Rule not found."),
        ({"file": file(), "rule_id": "x"}, 400, "A valid integer is required."),
        ({"file": file(), "rule_id": "9" * 5000}, 400, "rule_id"),
    ],
)
def test_refusals_are_shown_in_the_form(client: Client, fields: dict[str, Any], status: int, text: str) -> None:
    Rule.objects.filter(pk=10).delete()
    response = client.post(SUBMIT, fields)
    page = html.unescape(response.content.decode())
    assert (response.status_code, text in page, "No documents yet" in page) == (status, True, True)
    assert not Task.objects.exists()


def test_a_too_large_file_is_refused_during_the_upload(client: Client, settings: LazySettings) -> None:
    change_settings(settings, etl_max_file_bytes=5)
    assert "The file exceeds 5 bytes." in followed(client, SUBMIT, file=file(b"123456"))
    assert not Task.objects.exists()


def test_a_full_queue_is_shown_in_the_form(client: Client, alice: User, settings: LazySettings) -> None:
    make_task(alice)
    change_settings(settings, etl_queue_size=1)
    response = client.post(SUBMIT, {"file": file()})
    assert (response.status_code, b"The document queue is full" in response.content) == (503, True)


# ---- The list -------------------------------------------------------------------------------------------------------
def test_documents_of_every_state_are_listed_and_filtered(client: Client, alice: User) -> None:
    rule = make_rule(alice)
    waiting, running, failed, done = (make_task(alice, rule=rule, filename=f"{n}.txt") for n in range(4))
    begin(running)
    fail(failed)
    complete(done)
    page = text(client.get(LIST))
    assert "The file is password-protected" in page
    for task, status in ((waiting, "pending"), (running, "mineru_parsing"), (failed, "failed"), (done, "completed")):
        assert path(task) in page
        fitting = text(client.get(f"{LIST}?status={status}"))
        assert re.findall(rf'href="({LIST}/\d+)"', fitting) == [path(task)], status
        assert task.filename in text(client.get(path(task)))
    assert "No documents match this filter" in text(client.get(f"{LIST}?status=llm_processing"))
    assert client.get(f"{LIST}?status=nonsense").status_code == 400
    assert client.get(f"{LIST}?cursor=nonsense").status_code == 400


def test_lists_are_paginated(client: Client, alice: User) -> None:
    rule = make_rule(alice)
    tasks = [make_row(alice, rule=rule) for _ in range(5)]
    url, seen = f"{LIST}?limit=2&status=pending", []
    while url:
        page = text(client.get(url))
        seen += re.findall(rf'href="({LIST}/\d+)"', page)
        older = re.search(r'rel="next" href="([^"]+)"', page)
        url = older[1] if older else ""
    assert seen == [path(task) for task in reversed(tasks)]


def test_bulk_actions_report_skipped_documents(client: Client, alice: User, bob: User) -> None:
    rule = make_rule(alice)
    waiting, running, failed, done = (make_task(alice, rule=rule) for _ in range(4))
    theirs = make_task(bob)
    begin(running)
    fail(failed)
    complete(done)
    chosen = [task.pk for task in (waiting, running, failed, done, theirs)]
    page = followed(client, f"{LIST}/several?status=failed", do="cancel", task=chosen)
    assert "1 cancelled. 1 unchanged: The task has ended: completed." in page
    assert "1 unchanged: Processing has already started (stage ocr)." in page
    assert 'aria-current="true">Failed' in page
    page = followed(client, f"{LIST}/several", do="retry", task=chosen)
    assert "2 queued. 1 unchanged: The document is completed." in page
    assert followed(client, f"{LIST}/several", do="retry").count("Select at least one document first.") == 1
    assert Task.objects.get(pk=theirs.pk).generation == 1


# ---- One document ---------------------------------------------------------------------------------------------------
def test_a_result_is_shown_with_its_sources(client: Client, alice: User) -> None:
    task = invoice(alice)
    page = text(client.get(path(task)))
    assert '<td class="right">12</td>' in page
    assert "OCR confidence 71 %: check this page" in page
    assert "2 warnings" in page
    assert 'data-page="2" data-quote="<td>DE02 1203 0000 0000 2020 51</td>"' in page
    # In the legend and its table, and for two prices, an item, a quantity, and the discount.
    assert page.count("no source") == 2 + 5
    assert page.count("page 1?") == 1
    # In the order of the rule.
    assert re.findall(r'class="name">(number|supplier|discount)<', page) == ["number", "supplier", "discount"]
    raw = text(client.get(f"{path(task)}?json=raw"))
    assert '"total": 645.0' in raw
    assert "| Desk lamp | 12 | 31.50 EUR |" in text(client.get(f"{path(task)}?view=source"))


def test_downloads_are_named_after_the_document(client: Client, alice: User) -> None:
    task = invoice(alice)
    data = client.get(path(task, "json"))
    assert data["Content-Disposition"].startswith('attachment; filename="invoice-0417.json"')
    assert list(json.loads(data.content)) == list(scenes.DATA)
    markdown = client.get(path(task, "markdown"))
    assert markdown["Content-Disposition"].startswith('attachment; filename="invoice-0417.md"')
    assert markdown.getvalue().startswith(b"<!-- page: 1 -->")


def get(url: str) -> Any:
    return httpx2.get(url, trust_env=False)


def test_the_original_is_downloaded_by_a_short_lived_url(client: Client, alice: User) -> None:
    task = make_task(alice, "The very bytes.\r\n", filename="Übersicht 2024.txt")
    page = text(client.get(path(task)))
    assert f'href="{path(task, "original")}">Download original<' in page
    answer = client.get(path(task, "original"))
    assert (answer.status_code, answer["Cache-Control"]) == (302, "no-store")
    url = answer["Location"]
    assert 1 <= int(parse_qs(urlsplit(url).query)["X-Amz-Expires"][0]) <= 60
    file = get(url)
    assert (file.status_code, file.content) == (200, b"The very bytes.\r\n")
    assert file.headers["Content-Disposition"] == (
        "attachment; filename=\"_bersicht 2024.txt\"; filename*=UTF-8''%C3%9Cbersicht%202024.txt"
    )
    assert file.headers["Content-Type"].startswith("text/plain")
    renamed = get(url.replace("attachment", "inline"))
    assert renamed.status_code == 403  # the signature covers the response headers


def test_only_staff_download_documents_of_other_users(alice: User, bob: User, pages: Client) -> None:
    task = make_row(alice, "Alice's.")
    assert get(pages.get(path(task, "original"))["Location"]).content == b"Alice's."
    assert browser_of(bob).get(path(task, "original")).status_code == 404
    assert browser_of(alice).post(path(task, "original")).status_code == 405


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ('a".txt\r\nSet-Cookie: x=1\r\n\r\n<script>', "a_.txt__Set-Cookie: x=1____<script>"),
        ("../../etc/passwd", ".._.._etc_passwd"),
        ("a;filename=evil.html.pdf", "a;filename=evil.html.pdf"),
        ("a\u202efdp.exe", "a_fdp.exe"),
        ("", "document.html"),
    ],
)
def test_names_cannot_inject_headers(client: Client, alice: User, name: str, kept: str) -> None:
    task = make_row(alice, "<script>alert(1)</script>", filename=name, kind="html")
    answer = client.get(path(task, "original"))
    assert "\n" not in answer["Location"]
    file = get(answer["Location"])
    assert file.status_code == 200
    header = file.headers["Content-Disposition"]
    assert re.fullmatch(r'attachment; filename="[^"\\;/\r\n]*"; filename\*=UTF-8\'\'[^"\\;/<> ]*', header)
    assert unquote(header.partition("UTF-8''")[2]) == kept
    assert "Set-Cookie" not in file.headers


def test_a_missing_document_is_explained(client: Client, alice: User) -> None:
    task = make_row(alice)
    storage.delete(task.document_key)
    answer = client.get(path(task, "original"))
    page = html.unescape(answer.content.decode())
    assert (answer.status_code, "Location" in answer) == (410, False)
    assert "The document is gone" in page
    assert "Submit it again" in page
    assert task.document_key not in page


def test_a_task_with_missing_artifacts_is_shown(client: Client, alice: User) -> None:
    task = invoice(alice)
    sheets.index.cache_clear()
    storage.delete_many(item.key for item in storage.list_objects(artifacts.folder(task)))
    page = text(client.get(path(task)))
    assert "no stored OCR result" in page
    assert "INV-2024-17" in page  # the database has the result


def test_retry_buttons_name_the_repeated_stages(client: Client, alice: User) -> None:
    task = invoice(alice)
    other = make_rule(alice, name="Other")
    assert "Rule not found." in followed(client, path(task, "retry"), from_stage="postprocess", rule_id="999999")
    assert "valid choice" in followed(client, path(task, "retry"), from_stage="everything")
    page = followed(client, path(task, "retry"), from_stage="postprocess", rule_id=other.pk)
    assert "Queued for extraction" in page
    assert "Other, version 1" in page
    assert Task.objects.get().rule_id == other.pk


def test_a_late_cancel_is_refused_with_the_reason(client: Client, alice: User) -> None:
    """An outdated page that shows "pending" cannot stop a running task. The page of a running task can."""
    task = make_task(alice)
    assert 'name="force"' not in text(client.get(path(task)))
    begin(task)
    assert "Processing has already started (stage ocr)." in followed(client, path(task, "cancel"))
    assert 'name="force"' in text(client.get(path(task)))
    assert "Document cancelled." in followed(client, path(task, "cancel"), force="1")


def test_the_steps_show_where_a_document_was_cancelled(client: Client, alice: User) -> None:
    waiting, running = make_task(alice), make_task(alice)
    begin(running)
    for task in (waiting, running):
        followed(client, path(task, "cancel"), force="1")

    def tones(task: Task) -> list[tuple[str, str]]:
        return [(step.name, step.tone) for step in client.get(path(task)).context["steps"]]

    assert tones(waiting)[:2] == [("Pending", "cancelled"), ("Parsing", "later")]
    assert tones(running)[:2] == [("Pending", "done"), ("Parsing", "cancelled")]
    assert "Cancelled before it started." not in text(client.get(path(running)))


def test_an_ended_document_can_be_deleted(client: Client, alice: User) -> None:
    """B34."""
    task = make_task(alice)
    assert path(task, "delete") not in text(client.get(path(task)))
    complete(task)
    assert path(task, "delete") in text(client.get(path(task)))
    assert "Document deleted." in followed(client, path(task, "delete"))
    assert client.get(path(task)).status_code == 404


def test_names_and_texts_are_escaped(client: Client, alice: User) -> None:
    task = scenes.make_pdf(alice, "<img src=x onerror=alert(1)>.pdf")
    scenes.finish_ocr(task, ("<script>alert(1)</script> [x](javascript:alert(1))",))
    data = {"</span><script>alert(2)</script>": "<script>alert(3)</script>"}
    scenes.finish_postprocessing(task, data, [{"pointer": "/x", "page": 1, "quote": '"><script>', "match": "exact"}])
    for url in (path(task), LIST, f"{path(task)}?json=raw&view=source", path(task, "pages"), path(task, "branch")):
        response = client.get(url)
        assert response.status_code == 200
        body = response.content.decode()
        assert not re.search(r"<script>|<img src=x|href=\"javascript", body), url
        assert "nonce" not in response["Content-Security-Policy"]


# ---- Without a language model ---------------------------------------------------------------------------------------
NEEDS = "(needs a language model, and none is configured)"


def end_without_a_model(task: Task) -> None:
    scenes.finish_ocr(task)
    state = begin(task, Stage.POSTPROCESS)
    error = errors.LlmForbidden("No language model is set up here: set ETL_LLM_BASE_URL and ETL_LLM_MODEL.")
    completion.record_end(runstate.fail(state, error=errors.explain(error, stage=state.phase), usage={}))


def test_unusable_rules_are_marked_in_every_menu(client: Client, alice: User, settings: LazySettings) -> None:
    make_rule(alice, mode="llm", name="Invoices")
    make_rule(alice, name="Plain")
    task = make_task(alice, rule=Rule.objects.get(name="Plain"))
    complete(task)
    asking = scenes.make_pdf(alice)
    end_without_a_model(asking)
    pages = [text(client.get(url)) for url in (LIST, path(task), path(asking))]
    assert [page.count(f"Invoices {NEEDS}") for page in pages] == [3, 1, 1]  # the list has two more menus
    assert f"The rule Invoices {NEEDS[1:-1]}." in pages[2]
    assert f"The rule Plain {NEEDS[1:-1]}" not in pages[1]
    assert not any(f"Plain {NEEDS}" in page for page in pages)
    change_settings(settings, etl_llm_base_url="http://127.0.0.1:9/v1", etl_llm_model="any")
    assert not any("none is configured" in text(client.get(url)) for url in (LIST, path(task), path(asking)))


def test_the_result_page_suggests_a_rule_with_fields_if_one_is_usable(
    client: Client, alice: User, settings: LazySettings
) -> None:
    scenes.plain(alice)
    task = Task.objects.latest("task_id")
    page = text(client.get(path(task)))
    assert "extract again with a rule that extracts fields" not in page
    assert "Rules that extract fields need a language model, and none is configured." in page
    change_settings(settings, etl_llm_base_url="http://127.0.0.1:9/v1", etl_llm_model="any")
    assert "extract again with a rule that extracts fields" in text(client.get(path(task)))


def test_a_missing_model_does_not_suggest_a_later_retry(client: Client, alice: User) -> None:
    task = scenes.make_pdf(alice)
    end_without_a_model(task)
    page = text(client.get(path(task)))
    assert "No language model is configured" in page
    assert "Ask an administrator to configure a language model" in page
    assert "in a few minutes" not in page
    assert "A retry may succeed" not in page
    assert "No language model is configured" in text(client.get(LIST))
    followed(client, path(task, "retry"), from_stage="postprocess")  # accepted: a model may be configured by then
    assert Task.objects.get(pk=task.pk).status == "pending"


# ---- Large documents -------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_long_documents_are_shown_a_few_pages_at_a_time(client: Client, alice: User) -> None:
    scenes.long_document(alice)
    task = Task.objects.latest("task_id")
    began = time.thread_time()
    page = text(client.get(path(task)))
    assert time.thread_time() - began < 3
    shown = [int(number) for number in re.findall(r'id="page-(\d+)"', page)]
    assert shown == list(range(1, len(shown) + 1))
    assert len(shown) < 50
    seen, url = shown, f"?at={len(shown)}"
    while url and len(seen) < 300:
        part = text(client.get(path(task, "pages") + url))
        assert "previous pages" not in part
        seen += [int(number) for number in re.findall(r'id="page-(\d+)"', part)]
        url = next(iter(re.findall(r'hx-get="[^"]*(\?at=\d+)"', part)), "")
    assert seen == list(range(1, 301))
    led = text(client.get(path(task, "pages") + "?page=250"))
    assert re.findall(r'id="page-(\d+)"', led)[0] == "250"
    before = text(client.get(path(task, "pages") + re.findall(r'hx-get="[^"]*(\?before=\d+)"', led)[0]))
    assert re.findall(r'id="page-(\d+)"', before)[-1] == "249"
    assert "more pages" not in before


def test_a_very_long_page_is_shown_as_parts_of_plain_text(alice: User) -> None:
    task = scenes.make_pdf(alice)
    long = "".join(f"{number} äöü € 𝄞 " for number in range(20_000))
    scenes.finish_ocr(task, ("first", long.strip(), "last"))
    key = lookup.states_of([task.pk])[task.pk].markdown_key
    found, at = [], 0
    while True:
        stack = sheets.load(key, at=at)
        found += stack.sheets
        if stack.after is None:
            break
        at = stack.after
    assert [sheet.piece.page for sheet in found] == [1, *[2] * found[1].piece.parts, 3]
    assert "".join(sheet.text for sheet in found if sheet.piece.page == 2).strip() == long.strip()
    assert [sheet.html is None for sheet in found] == [False, *[True] * found[1].piece.parts, False]


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_pages_are_found_at_any_range_boundary(size: int) -> None:
    content = "".join(
        f"{page_marker(number)}\n\ntext {number} <!-- page: 9 --> x\n\n" for number in range(1, 30)
    ).encode()
    blocks = [content[at : at + size] for at in range(0, len(content), size)]
    pieces = list(sheets.cut(sheets.marks(blocks)))
    assert [piece.page for piece in pieces] == list(range(1, 30))
    assert all(content[piece.start : piece.end].strip().startswith(b"text %d " % piece.page) for piece in pieces)


def test_large_json_is_shown_branch_by_branch(client: Client, alice: User) -> None:
    scenes.long_document(alice)
    task = Task.objects.latest("task_id")
    page = text(client.get(path(task)))
    assert "10,000 items" in page
    assert len(page) < 400_000
    more = text(client.get(path(task, "branch") + "?node=/items&from=9950"))
    assert "Item 9999" in more
    assert "Show more" not in more
    assert "too large to show as text" in text(client.get(f"{path(task)}?json=raw"))
    for nothing in ("/nothing", "/items/10000", "/items/x", "/title/0"):
        assert client.get(path(task, "branch"), {"node": nothing}).status_code == 404, nothing


def test_tree_nodes_have_correct_pointers() -> None:
    data = {"a/b": {"c~d": [1, {"": None}]}, "deep": json.loads("[" * 60 + "]" * 60)}

    def walk(node: tree.Node) -> None:
        value = tree.resolve(data, node.pointer)
        assert tree.kind_of(value) == node.kind
        for child in node.children or []:
            walk(child)

    root = tree.build(data, {})
    walk(root)
    assert tree.build(data, {}, at="/a~1b/c~0d").children is not None


# ---- Explanations ---------------------------------------------------------------------------------------------------
def test_exactly_the_error_codes_have_explanations() -> None:
    assert set(explanations.ERRORS) == errors.codes() | {"queue_full"}
    assert set(explanations.PERMANENT_ERRORS) <= set(explanations.ERRORS)
    every = (*explanations.ERRORS.values(), *explanations.PERMANENT_ERRORS.values(), *explanations.WARNINGS.values())
    for each in every:
        assert each.title
        assert each.title[-1] not in ".!"
        assert each.advice.endswith(".")


@pytest.mark.slow
def test_exactly_the_warning_codes_have_explanations() -> None:
    """The code of a warning is the first argument of `….warn(…)`."""
    codes = set(OFFICE_WARNINGS)
    named = {"USAGE_INCOMPLETE": USAGE_INCOMPLETE, "REPEATED": REPEATED}
    for file in Path(settings.BASE_DIR, "etl").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "warn" and node.args:
                first = node.args[0]
                codes |= {str(first.value)} if isinstance(first, ast.Constant) else set()
                codes |= {named[first.id]} if isinstance(first, ast.Name) and first.id in named else set()
    assert codes == set(explanations.WARNINGS)
