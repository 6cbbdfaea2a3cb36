"""Exports in a real browser, with real workers and real object storage: from the form to the file on disk. C1."""

import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone
from playwright.sync_api import BrowserContext, Page, expect

from config.platform.http import roles
from exports.jobs.columns import columns_of
from exports.models import Dataset, Job, Receipt
from tests.browser import scenes_exports
from tests.browser.conftest import HOST, Accessible, PageMonitor, download
from tests.e2e.conftest import Workers
from tests.integration.factories import fail_chunk, make_job
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")

SOON = 60_000  # milliseconds: workers start in the meantime

# The call of a chunk continues when the gate is past its day, counted from 0. The gate is a sequence, because
# transactions do not isolate sequences.
GATED = """
CREATE SEQUENCE data.gate MINVALUE 0 START 0;
CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE plpgsql AS $$ #variable_conflict use_column
BEGIN
    WHILE (SELECT last_value FROM data.gate) <= $2 - date '2024-02-28' LOOP PERFORM pg_sleep(0.02); END LOOP;
    RETURN QUERY SELECT key, n, effective_date FROM generate_series(1, 3) n;
END $$
"""

# Replaces each visible countdown with an expired one.
EXPIRE_COUNTDOWNS = """() => {
  for (const place of document.querySelectorAll("[data-countdown]")) {
    const expired = place.cloneNode(true);
    expired.dataset.countdown = 0;
    place.replaceWith(expired);
  }
}"""


class ChunkGate:
    """Lets the calls of a given number of a job's chunks finish."""

    def __init__(self, source_db: psycopg.Connection) -> None:
        self.source_db = source_db
        source_db.execute(GATED)

    def open(self, chunks: int) -> None:
        self.source_db.execute("SELECT setval('data.gate', %s)", [chunks])


@pytest.fixture
def gate(dataset: Dataset, source_db: psycopg.Connection) -> Iterator[ChunkGate]:
    gate = ChunkGate(source_db)
    yield gate
    gate.open(10_000)


def job_of(page: Page) -> Job:
    return Job.objects.get(pk=page.url.partition("?")[0].rpartition("/")[2])


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def heading(page: Page) -> Any:
    return page.get_by_role("heading", level=1)


# ---- From the form to the file --------------------------------------------------------------------------------------


def test_an_export_works_from_the_form_to_the_file(
    dataset: Dataset, page: Page, workers: Workers, accessible: Accessible, tmp_path: Path
) -> None:
    workers.start()
    page.goto("/app/exports")
    accessible(page)
    page.get_by_role("button", name="Create your first export").click()
    page.get_by_label("Keys and dates, one pair per line").fill("JFK 2024-02-28\nLGA 29.02.2024\nJFK 2024-02-28")
    preview = page.locator("#preview")
    expect(preview).to_contain_text("Line 2: “29.02.2024” is not a date. Write it as 2024-02-29.")
    page.get_by_role("button", name="Create export", exact=True).click()
    expect(page.locator("#id_items_error")).to_contain_text("Line 2: “29.02.2024” is not a date")
    accessible(page)
    page.get_by_label("Keys and dates, one pair per line").fill("JFK 2024-02-28\nLGA 2024-02-29\nJFK 2024-02-28")
    expect(preview).to_contain_text("1 duplicate pair is skipped.")
    expect(preview).to_contain_text(re.compile(r"Chunks\s*2"))
    accessible(page)
    page.get_by_role("button", name="Create export", exact=True).click()

    expect(heading(page)).to_contain_text("Success", timeout=SOON)
    page.evaluate("window.same = true")
    accessible(page)
    checksum = page.locator("#checksum").inner_text()
    receipt = Receipt.objects.get(job=job_of(page))
    assert receipt.checksum == checksum
    button = page.get_by_role("button", name=re.compile("^Download"))
    for times in (1, 2):
        file = download(page, button.click, tmp_path)
        assert (sha256(file), file.name) == (checksum, receipt.file_name)
        expect(page.locator("#receipt")).to_contain_text("The last link was used")
        assert receipt.links.filter(used_at__isnull=False).count() == times
        expect(button).to_be_enabled()
    assert page.evaluate("window.same"), "the page was reloaded"
    page.reload()
    expect(page.locator("#timeline")).to_contain_text("Downloaded")
    page.goto("/app/exports")
    assert sha256(download(page, page.get_by_role("button", name="Download").click, tmp_path)) == checksum


@pytest.mark.slow
def test_a_link_for_a_program_is_created_and_copied(
    dataset: Dataset, page: Page, context: BrowserContext, alice: User, accessible: Accessible
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    scenes_exports.ready(alice)
    page.goto(scenes_exports.path_of_newest_job(alice))
    page.get_by_text("One-time link for scripts").click()
    page.get_by_role("button", name="Create one-time link").click()
    expect(page.get_by_role("status").first).to_contain_text("One-time link created")
    expect(page.locator("#receipt")).to_contain_text("127.0.0.0/24")
    accessible(page)
    page.wait_for_load_state()  # before that, nothing can be copied
    page.get_by_role("button", name="Copy command").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert re.match(r"curl -fL -A 'Mozilla/5\.0 .*' -o 'weather_\S+' 'http://\S+/download\?token=\S+'$", copied)


@pytest.mark.slow
def test_an_uploaded_file_fills_the_list(dataset: Dataset, page: Page, tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("key,effectiveDate\nJFK,2024-02-29\nLGA,2024-03-01\n")
    page.goto("/app/exports/new")
    page.get_by_label("Or upload a CSV file").set_input_files(file)
    expect(page.get_by_label("Keys and dates, one pair per line")).to_have_value(file.read_text())
    expect(page.locator("#preview")).to_contain_text(re.compile(r"Chunks\s*2"))
    page.get_by_role("button", name="Create export", exact=True).click()
    expect(heading(page)).to_contain_text("Pending")
    assert job_of(page).total == 2


@pytest.mark.slow
def test_a_dropped_file_that_is_too_large_is_refused(dataset: Dataset, page: Page, watch: PageMonitor) -> None:
    watch.expect("413")
    page.goto("/app/exports/new")
    page.get_by_label("Keys and dates, one pair per line").evaluate(
        """list => {
          const dropped = new DataTransfer();
          dropped.items.add(new File([new Uint8Array(5 * 1024 * 1024 + 1)], "pairs.csv"));
          list.dispatchEvent(new DragEvent("drop", { dataTransfer: dropped, bubbles: true, cancelable: true }));
        }"""
    )
    page.get_by_role("button", name="Create export", exact=True).click()
    expect(page.locator("#trouble")).to_contain_text("must not exceed 5,242,880 bytes")
    page.get_by_label("Keys and dates, one pair per line").fill("JFK 2024-02-29")
    expect(page.locator("#preview")).to_contain_text(re.compile(r"Chunks\s*1"))
    expect(page.locator("#trouble")).to_be_visible()  # an update of another part does not remove it
    page.get_by_label("Or upload a CSV file").set_input_files([])
    page.get_by_role("button", name="Create export", exact=True).click()
    expect(heading(page)).to_contain_text("Pending")
    expect(page.locator("#trouble")).to_have_count(0)


@pytest.mark.slow
def test_the_form_works_by_keyboard_alone(dataset: Dataset, page: Page) -> None:
    page.goto("/app/exports/new")
    page.get_by_label("Dataset").focus()
    press = page.keyboard.press
    press("Tab")
    page.keyboard.type("By keyboard")
    press("Tab")
    press("ArrowDown")  # filters instead of items
    expect(page.get_by_label("Keys and dates, one pair per line")).to_be_hidden()
    press("Tab")
    page.keyboard.type("JFK LGA")
    press("Tab")
    page.keyboard.type("02282024")
    for _ in range(6):  # the parts of a date and its picker are separate tab stops
        if page.evaluate("document.activeElement.id") == "id_date_to":
            break
        press("Tab")
    page.keyboard.type("03012024")
    expect(page.locator("#preview")).to_contain_text(re.compile(r"Chunks\s*6"))
    for _ in range(30):
        press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Create export":
            break
    press("Enter")
    expect(heading(page)).to_contain_text("Pending")
    assert (job_of(page).total, (job_of(page).filters or {})["keys"]) == (6, ["JFK", "LGA"])
    assert job_of(page).name == "By keyboard"


@pytest.mark.slow
def test_keys_and_columns_are_added_by_their_buttons(dataset: Dataset, alice: User, page: Page) -> None:
    """A32, A41: by keyboard, too. The focus stays when the preview is reloaded."""
    columns_of(dataset)
    make_job(dataset, alice, 1)
    page.goto("/app/exports/new")
    page.get_by_role("button", name="JFK", exact=True).click()
    expect(page.get_by_label("Keys and dates, one pair per line")).to_be_focused()
    page.keyboard.type("2024-02-29")
    page.get_by_role("button", name="n integer").click()
    expect(page.get_by_role("textbox", name="Columns")).to_have_value("n")
    with page.expect_response("**/new/preview"):
        page.get_by_role("button", name="d date").press("Enter")
    expect(page.get_by_role("button", name="d date")).to_be_focused()
    page.get_by_role("button", name="Create export", exact=True).click()
    expect(heading(page)).to_contain_text("Pending")
    assert job_of(page).columns == ["n", "d"]


def test_csv_options_are_shown_for_csv_only(dataset: Dataset, page: Page) -> None:
    page.goto("/app/exports/new")
    delimiter, dialect = page.get_by_label("Delimiter"), page.get_by_label("CSV dialect")
    expect(delimiter).to_be_hidden()
    dialect.select_option("own")
    expect(delimiter).to_be_visible()
    page.get_by_label("Format").select_option("json")
    expect(dialect).to_be_hidden()


# ---- Progress -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_progress_survives_a_reload_and_reaches_two_tabs(  # noqa: PLR0917 - pytest passes fixtures by name
    dataset: Dataset,
    gate: ChunkGate,
    alice: User,
    page: Page,
    context: BrowserContext,
    watch: PageMonitor,
    workers: Workers,
) -> None:
    job = make_job(dataset, alice, 6)
    page.goto(f"/app/exports/{job.pk}")
    expect(page.locator("#now")).to_contain_text("next in the queue")
    other = watch.monitored(context.new_page())
    other.goto("/app/exports")
    workers.start()
    gate.open(2)
    done = re.compile(r"Done\s*2 of 6")
    expect(page.locator("#now")).to_contain_text(done, timeout=SOON)
    expect(page.locator("#head")).to_contain_text("Cancel")
    page.reload()
    expect(page.locator("#now")).to_contain_text(done)
    expect(other.locator("#jobs")).to_contain_text("2 of 6")
    other.get_by_label(f"Select things {str(job.pk)[:8]}").check()
    page.bring_to_front()  # as a person would
    page.get_by_role("link", name="done 2").click()
    expect(page.locator("#chunks tbody tr")).to_have_count(2)
    page.go_back()
    expect(page.locator("#chunks tbody tr")).to_have_count(6)
    page.wait_for_load_state()  # until the reload, the link leads to another page
    page.get_by_role("link", name="done 2").click()
    gate.open(4)
    expect(page.locator("#chunks tbody tr")).to_have_count(4, timeout=SOON)
    assert page.url.endswith("?status=done")
    page.evaluate(STOP_POLLING_CHUNKS)
    gate.open(6)
    for tab in (page, other):
        expect(tab.locator("#head, #jobs")).to_contain_text("Success", timeout=SOON)
    expect(page.locator("#receipt")).to_contain_text("The delivery is kept for")
    expect(page.locator("#announcement")).to_have_text("Export ready.")
    expect(page.locator("#chunks tbody tr")).to_have_count(6)
    expect(other.get_by_label(f"Select things {str(job.pk)[:8]}")).to_be_checked()


# Stops polling for the table of chunks, which is updated once more when the export ends.
STOP_POLLING_CHUNKS = """() => {
    const chunks = document.getElementById("chunks");
    chunks.setAttribute("hx-trigger", "ended from:#now");
    htmx.process(chunks);
}"""


class StreamProxy:
    """A proxy to the web process that can cut its event streams and block new ones."""

    def __init__(self, port: int) -> None:
        self.target, self.is_cut, self.refused = port, False, 0
        self.streams: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                threading.Thread(target=self.copy, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self.copy, args=(server, client, False), daemon=True).start()

    def copy(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:  # noqa: FBT001 - for Thread
        with source, target, suppress(OSError):
            while data := source.recv(65536):
                if is_request and b"/events HTTP/1.1" in data.partition(b"\r\n")[0]:
                    self.refused += self.is_cut
                    if self.is_cut:
                        return
                    self.streams.append(source)
                target.sendall(data)
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        self.is_cut = True
        for stream in self.streams:
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
        self.streams.clear()


@pytest.fixture
def stream_proxy(web: Any) -> Iterator[StreamProxy]:
    with ExitStack() as stack:
        stream_proxy = StreamProxy(web.port)
        stack.enter_context(stream_proxy.listener)
        yield stream_proxy


@pytest.mark.slow
def test_progress_continues_without_the_stream_and_after_it_returns(  # noqa: PLR0917 - pytest passes fixtures by name
    dataset: Dataset,
    gate: ChunkGate,
    alice: User,
    page: Page,
    stream_proxy: StreamProxy,
    watch: PageMonitor,
    workers: Workers,
) -> None:
    watch.expect("ERR_")  # the browser reports each interrupted stream
    watch.allowed += (f"{HOST}:{stream_proxy.port}",)
    job = make_job(dataset, alice, 6)
    workers.start()
    page.goto(f"http://{HOST}:{stream_proxy.port}/app/exports/{job.pk}")
    wait_until(lambda: stream_proxy.streams)
    stream_proxy.cut()
    gate.open(2)
    expect(page.locator("#now")).to_contain_text(re.compile(r"Done\s*2 of 6"), timeout=SOON)
    wait_until(lambda: stream_proxy.refused >= 1)
    gate.open(3)
    expect(page.locator("#now")).to_contain_text(re.compile(r"Done\s*3 of 6"), timeout=SOON)
    stream_proxy.is_cut = False
    wait_until(lambda: stream_proxy.streams)
    gate.open(6)
    expect(heading(page)).to_contain_text("Success", timeout=SOON)


@pytest.mark.slow
def test_a_running_export_can_be_cancelled_and_replayed(  # noqa: PLR0917 - pytest passes fixtures by name
    dataset: Dataset, gate: ChunkGate, alice: User, page: Page, workers: Workers, accessible: Accessible
) -> None:
    job = make_job(dataset, alice, 4)
    page.goto(f"/app/exports/{job.pk}")
    workers.start()
    gate.open(1)
    expect(page.locator("#now")).to_contain_text(re.compile(r"Done\s*1 of 4"), timeout=SOON)
    accessible(page)
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Cancel").click()
    job.refresh_from_db()
    assert not job.has_ended
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("status").first).to_contain_text("Export cancelled with 3 unfinished chunks.")
    expect(heading(page)).to_contain_text("Cancelled")
    accessible(page)

    gate.open(4)
    page.get_by_role("button", name="Export again", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("Export created from the same request")
    expect(heading(page)).to_contain_text("Success", timeout=SOON)
    assert job_of(page).pk != job.pk
    expect(page.locator("#now")).to_contain_text(re.compile(r"Reused\s*1"))
    expect(page.locator("#chunks")).to_contain_text("Reused file")


@pytest.mark.slow
def test_failures_are_explained_and_retried_after_the_source_is_fixed(  # noqa: PLR0917 - pytest passes fixtures by name
    dataset: Dataset, alice: User, page: Page, source_db: psycopg.Connection, workers: Workers, accessible: Accessible
) -> None:
    source_db.execute("ALTER FUNCTION data.rows_for RENAME TO away")
    job = make_job(dataset, alice, 3)
    page.goto(f"/app/exports/{job.pk}")
    workers.start()
    expect(heading(page)).to_contain_text("Failed", timeout=SOON)
    expect(page.locator("#chunks")).to_contain_text("The source database raised an error: 3 chunks")
    expect(page.locator("#chunks")).to_contain_text("SQLSTATE 42883")
    expect(page.locator("#head")).to_contain_text("A retry uses 3 of the")
    accessible(page)

    source_db.execute("ALTER FUNCTION data.away RENAME TO rows_for")
    page.get_by_role("button", name="Retry 3 failed chunks").click()
    expect(heading(page)).to_contain_text("Success", timeout=SOON)
    expect(page.locator("#timeline")).to_contain_text("Export failed")


# ---- Failures -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_error_keeps_the_form_contents(
    dataset: Dataset, page: Page, watch: PageMonitor, accessible: Accessible
) -> None:
    """A table is missing when the form is sent."""
    watch.expect("500")
    page.goto("/app/exports/new")
    page.get_by_label("Keys and dates, one pair per line").fill("JFK 2024-02-29")
    expect(page.locator("#preview")).to_contain_text(re.compile(r"Chunks\s*1"))
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE exports_jobs RENAME TO away")
        try:
            page.get_by_role("button", name="Create export", exact=True).click()
            expect(page.locator("#trouble")).to_be_visible()
            accessible(page)
        finally:
            cursor.execute("ALTER TABLE away RENAME TO exports_jobs")
    expect(page.get_by_label("Keys and dates, one pair per line")).to_have_value("JFK 2024-02-29")
    page.get_by_role("button", name="Create export", exact=True).click()
    expect(heading(page)).to_contain_text("Pending")
    assert Job.objects.count() == 1


@pytest.mark.slow
def test_an_expiring_receipt_updates_without_a_reload(
    dataset: Dataset, alice: User, page: Page, accessible: Accessible
) -> None:
    scenes_exports.ready(alice)
    page.goto(scenes_exports.path_of_newest_job(alice))
    expect(page.get_by_role("button", name=re.compile("^Download"))).to_be_visible()
    Receipt.objects.update(expires_at=timezone.now())
    page.evaluate(EXPIRE_COUNTDOWNS)
    expect(page.locator("#receipt")).to_contain_text("The delivery expired")
    accessible(page)
    page.get_by_role("button", name=re.compile("^Download")).click()
    expect(page.get_by_role("status").first).to_contain_text("The delivery has expired.")
    expect(page.get_by_role("button", name=re.compile("^Download"))).to_have_count(0)


# ---- The list -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_selected_exports_are_counted_and_cancelled(
    dataset: Dataset, alice: User, page: Page, accessible: Accessible
) -> None:
    failed = make_job(dataset, alice, 1)
    fail_chunk()
    for _ in range(2):
        make_job(dataset, alice, 3)
    page.goto("/app/exports")
    cancel = page.get_by_role("button", name="Cancel …")
    expect(cancel).to_be_disabled()
    page.get_by_label("Select all").check()
    expect(page.get_by_text("3 selected.")).to_be_visible()
    accessible(page)
    cancel.click()
    expect(heading(page)).to_have_text("Cancel 2 exports?")
    accessible(page)
    page.get_by_role("button", name="Cancel 2 exports").click()
    expect(page.get_by_role("status").first).to_contain_text("2 exports cancelled.")
    failed.refresh_from_db()
    assert failed.status == "failed"


@pytest.mark.slow
def test_the_job_of_another_user_is_not_found(
    dataset: Dataset, bob: User, page: Page, watch: PageMonitor, accessible: Accessible
) -> None:
    watch.expect("404")
    job = make_job(dataset, bob, 1)
    response = page.goto(f"/app/exports/{job.pk}")
    assert response
    assert response.status == 404
    expect(page.get_by_text("Export not found.")).to_be_visible()
    accessible(page)


@pytest.mark.slow
def test_auditors_see_their_exports_without_buttons(dataset: Dataset, alice: User, page: Page) -> None:
    """C14."""
    job = make_job(dataset, alice, 1)
    roles.assign(alice, roles.AUDITOR)
    page.goto("/app/exports")
    expect(page.locator(f"#job-{job.pk}")).to_be_visible()
    expect(page.locator(f"#tick-{job.pk}")).to_be_hidden()
    expect(page.get_by_role("button", name="Cancel …")).to_be_hidden()
