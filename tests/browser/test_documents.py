"""Documents in a browser: uploads with progress, live stages, text and data side by side, failures and retries. C1."""

import base64
import re
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Dialog, Page, Route, expect

from config.dev.stack.processes import Web
from etl.models import Task
from tests import scripted_stages
from tests.browser import scenes_documents as scenes
from tests.browser.conftest import Accessible, PageMonitor, download, sign_in
from tests.e2e.conftest import Workers
from tests.integration import openai_server
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.etl_progress import begin, complete, fail
from tests.integration.reviewed import make_invoice
from tests.samples import hostile, sample
from tests.waiting import wait_until

LIST = "/app/documents"
BOTH_QUEUES = "etl-ocr,etl-postprocess"
MS_PER_SECOND = 1000
DROP = """([files]) => {
  const transfer = new DataTransfer();
  for (const [name, content] of files) {
    const bytes = Uint8Array.from(atob(content), (char) => char.charCodeAt(0));
    transfer.items.add(new File([bytes], name));
  }
  const form = document.querySelector("form[data-upload]");
  for (const kind of ["dragover", "drop"]) {
    form.dispatchEvent(new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true }));
  }
}"""


def drop(page: Page, *files: tuple[str, bytes]) -> None:
    page.evaluate(DROP, [[[name, base64.b64encode(content).decode()] for name, content in files]])


def path(task: Task) -> str:
    return f"{LIST}/{task.pk}"


def accept(dialog: Dialog) -> None:
    dialog.accept()


def expect_status(page: Page, word: str, *, limit: float = 60) -> None:
    expect(page.locator("#document .state").first).to_have_text(word, timeout=limit * MS_PER_SECOND)


@pytest.fixture
def configure_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the workers use a fake provider and processor, which follow instructions in the document."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.scripted_settings")
    monkeypatch.setenv("ETL_OCR_PROVIDER", "tests.scripted_stages.Provider")


@pytest.fixture
def slow_images(watch: PageMonitor) -> None:
    """Allow 409 responses for images that take longer than a request waits. The page requests such images again."""
    watch.expect("409")


# ---- Uploads --------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("slow_images")
def test_chosen_and_dropped_files_are_processed(
    page: Page, workers: Workers, watch: PageMonitor, accessible: Accessible, tmp_path: Path
) -> None:
    watch.expect("400")
    page.goto(LIST)
    expect(page.locator("#rows")).to_contain_text("No documents yet")
    expect(page.locator("#id_file_helptext")).to_contain_text("PDF, PNG, JPEG")
    accessible(page)
    page.locator("#id_file").set_input_files(sample("invoice.pdf"))
    page.get_by_role("button", name="Upload", exact=True).click()
    expect(page.locator(".uploads li")).to_contain_text("Uploaded")
    drop(page, ("scan.jpg", sample("notice-zh-scan.jpg").read_bytes()), ("nothing.txt", b""), ("b.txt", b"Hello."))
    expect(page.locator(".uploads li").nth(3)).to_contain_text("Uploaded")
    expect(page.locator(".uploads li").nth(2)).to_contain_text("Upload failed: The document is empty (0 bytes).")
    expect(page.locator("#rows tbody tr")).to_have_count(3)
    accessible(page)

    workers.start(BOTH_QUEUES, concurrency=2)
    for row in range(3):
        expect(page.locator("#rows .state").nth(row)).to_have_text("Completed", timeout=90 * MS_PER_SECOND)
    page.get_by_role("link", name="invoice.pdf").click()
    expect(page.locator("#page-1 .rendered")).to_contain_text("Invoice")
    expect(page.locator("#json")).to_contain_text("returns Markdown only")
    accessible(page)
    file = download(page, lambda: page.get_by_role("button", name="Download Markdown").click(), tmp_path)
    assert file.name == "invoice.md"
    assert file.read_text().startswith("<!-- page: 1 -->")


@pytest.mark.slow
@pytest.mark.usefixtures("slow_images")
def test_it_works_without_scripts(browser: Browser, web: Web, alice: User, watch: PageMonitor) -> None:
    context = browser.new_context(base_url=f"http://localhost:{web.port}", java_script_enabled=False)
    sign_in(context, alice)
    page = watch.monitored(context.new_page())
    page.goto(LIST)
    page.locator("#id_file").set_input_files(sample("invoice.pdf"))
    page.get_by_role("button", name="Upload", exact=True).click()
    expect(page.locator("#messages")).to_contain_text("Document uploaded")
    expect(page.locator(".steps .now")).to_contain_text("Pending")
    task = Task.objects.get()
    assert page.url.endswith(path(task))
    scenes.finish_ocr(task)
    scenes.finish_postprocessing(task, scenes.DATA, scenes.CITATIONS)
    page.reload()
    expect(page.locator("#page-1 td").first).to_have_text("Desk lamp")
    page.get_by_role("link", name="page 2", exact=True).click()
    expect(page.locator("#page-2")).to_be_in_viewport()
    page.get_by_role("link", name="Text", exact=True).click()
    expect(page.locator("#raw")).to_contain_text('"number": "INV-2024-17"')
    context.close()


@pytest.mark.slow
def test_a_lost_response_creates_no_second_task(page: Page, watch: PageMonitor) -> None:
    watch.expect("net::ERR_FAILED")
    lost: list[int] = []

    def lose(route: Route) -> None:
        if lost:
            route.continue_()
            return
        lost.append(route.fetch().status)
        route.abort()

    page.route("**/api/v1/etl/submit", lose)
    page.goto(LIST)
    drop(page, ("a.txt", b"Hello."))
    expect(page.locator(".uploads li")).to_contain_text("Uploaded")
    assert lost == [202]
    assert Task.objects.count() == 1


@pytest.mark.slow
def test_a_refused_upload_shows_the_api_error(page: Page, watch: PageMonitor) -> None:
    watch.expect("415")
    page.goto(LIST)
    drop(page, ("letter.rtf", rb"{\rtf1\ansi A letter.}"))
    messages = page.locator(".uploads li")
    expect(messages).to_contain_text("The file type is RTF. The configured OCR provider supports")
    expect(messages.get_by_role("button", name="Try again")).to_be_hidden()
    page.evaluate("document.querySelector('[data-upload]').dataset.maxBytes = 5")
    drop(page, ("large.txt", b"Hello."))
    expect(page.locator(".uploads li").nth(1)).to_contain_text("Not uploaded: the file is larger than 52.4 MB")
    assert not Task.objects.exists()


@pytest.mark.slow
def test_a_cancelled_upload_can_be_sent_again(page: Page) -> None:
    held: list[Route] = []
    page.route("**/api/v1/etl/submit", lambda route: held.append(route))  # noqa: PLW0108 - playwright wants a function
    page.goto(LIST)
    with page.expect_request("**/api/v1/etl/submit"):
        drop(page, ("a.txt", b"Hello."))
    page.locator(".uploads").get_by_role("button", name="Cancel").click()
    expect(page.locator(".uploads li")).to_contain_text("Upload cancelled")
    page.unroute("**/api/v1/etl/submit")
    page.locator(".uploads").get_by_role("button", name="Try again").click()
    expect(page.locator(".uploads li")).to_contain_text("Uploaded")
    assert len(held) == 1
    assert Task.objects.count() == 1


# ---- Progress -------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_stages_update_live_and_survive_a_reload(
    page: Page, alice: User, workers: Workers, configure_stages: None, accessible: Accessible
) -> None:
    rule = make_rule(alice, mode="llm", name="Rehearsed")
    word = f"go-{rule.pk}-"
    task = make_task(alice, f"page 3 10\nuntil {word}1\npost:until {word}2", rule=rule)
    page.goto(path(task))
    expect(page.locator(".steps .now")).to_contain_text("Pending")
    accessible(page)
    workers.start(BOTH_QUEUES)
    expect_status(page, "MinerU parsing")
    expect(page.locator(".steps .now")).to_contain_text("30 %. Page 3 of 10.")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.reload()
    expect_status(page, "MinerU parsing")
    scripted_stages.allow(f"{word}1")
    expect_status(page, "LLM processing")
    accessible(page)
    scripted_stages.allow(f"{word}2")
    expect_status(page, "Completed")
    expect(page.locator("#json .value")).to_have_text(re.compile(r"\d+"))
    expect(page.locator("#page-1")).to_contain_text("until")
    accessible(page)


@pytest.mark.slow
def test_it_continues_when_the_stream_is_cut(page: Page, alice: User, watch: PageMonitor) -> None:
    watch.expect("net::ERR_FAILED")
    task = make_task(alice)
    page.route("**/events", lambda route: route.abort())
    page.goto(path(task))
    expect(page.locator(".steps .now")).to_contain_text("Pending")
    complete(task)
    expect_status(page, "Completed")


@pytest.mark.slow
def test_a_queued_document_can_be_cancelled(page: Page, alice: User, accessible: Accessible) -> None:
    waiting, running = make_task(alice), make_task(alice)
    begin(running)
    page.once("dialog", lambda dialog: dialog.accept())
    page.goto(path(waiting))
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#messages")).to_contain_text("Document cancelled")
    expect_status(page, "Cancelled")
    accessible(page)
    assert Task.objects.get(pk=waiting.pk).status == "cancelled"


@pytest.mark.slow
def test_bulk_cancel_reports_documents_it_skipped(page: Page, alice: User, accessible: Accessible) -> None:
    rule = make_rule(alice)
    tasks = [make_task(alice, rule=rule) for _ in range(3)]
    page.goto(LIST)
    expect(page.locator("#several")).to_be_hidden()
    begin(tasks[0])
    page.locator(f"#pick-{tasks[1].pk}").check()
    page.locator("#all").check()
    accessible(page)
    expect(page.locator("#rows .state").last).to_have_text("MinerU parsing")  # reloaded; ticked rows stay ticked
    page.get_by_role("button", name="Cancel 3").click()
    expect(page.get_by_role("status").first).to_contain_text(
        "2 cancelled. 1 unchanged: Processing has already started (stage ocr)."
    )
    expect(page.locator("#rows .state")).to_have_text(["Cancelled", "Cancelled", "MinerU parsing"])


# ---- Failures -------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_failure_is_explained_and_can_be_retried(
    page: Page, alice: User, workers: Workers, configure_stages: None, accessible: Accessible
) -> None:
    strict, plain = make_rule(alice, mode="llm", name="Strict"), make_rule(alice, name="Plain")
    task = make_task(alice, "post:raise SchemaInvalid", rule=strict)
    workers.start(BOTH_QUEUES)
    page.goto(path(task))
    expect_status(page, "Failed")
    expect(page.locator(".failure")).to_contain_text("does not match the schema")
    expect(page.locator(".failure")).to_contain_text("What to do: Relax the rule's schema")
    expect(page.locator("#page-1")).to_contain_text("SchemaInvalid")
    accessible(page)

    page.get_by_label("Rule").select_option(str(plain.pk))
    page.get_by_role("button", name="Extract again").click()
    expect(page.locator("#messages")).to_contain_text("Queued for extraction from the existing text.")
    expect_status(page, "Completed")
    assert len(scripted_stages.calls(f"ocr-{task.pk}")) == 1

    page.get_by_text("Run again or change the rule").click()
    page.get_by_role("button", name="Parse again").click()
    expect(page.locator("#messages")).to_contain_text("Queued for parsing.")
    expect_status(page, "Completed")
    assert len(scripted_stages.calls(f"ocr-{task.pk}")) == 2


@pytest.mark.slow
def test_open_sections_and_choices_survive_updates(page: Page, alice: User) -> None:
    """The last update may arrive when a user has already opened the retry form."""
    plain, task = make_rule(alice, name="Plain"), make_task(alice)
    complete(task)
    page.goto(path(task))
    page.get_by_text("Run again or change the rule").click()
    page.get_by_label("Rule").select_option(str(plain.pk))
    page.evaluate("document.getElementById('again').dataset.before = ''")
    page.evaluate("htmx.ajax('GET', location.href, { target: '#document', swap: 'innerHTML' })")
    expect(page.locator("#again:not([data-before])")).to_have_attribute("open", "")
    expect(page.get_by_label("Rule")).to_have_value(str(plain.pk))


@pytest.mark.slow
def test_a_running_document_can_be_cancelled(page: Page, alice: User, workers: Workers, configure_stages: None) -> None:
    """B33: the user confirms it in a dialog that states what will be lost."""
    task = make_task(alice, "page 3 10\nuntil never")
    workers.start(BOTH_QUEUES)
    page.goto(path(task))
    expect_status(page, "MinerU parsing")
    with page.expect_event("dialog") as dialog:
        page.on("dialog", accept)
        page.get_by_role("button", name="Stop").click()
    assert dialog.value.message == "Stop processing this document? The progress of this stage will be lost."
    expect_status(page, "Cancelled")


# ---- Results --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_values_link_to_their_citations(
    page: Page, alice: User, workers: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rule = make_rule(alice, mode="llm", name="Invoices")
    table = "| Item | Price |\n| --- | --- |\n| Desk lamp | 31.50 |"
    text = f"# Invoice INV-2024-17\n\n{table}\n\n<b>Total</b> due: 645.00 EUR"
    data = {"number": "INV-2024-17", "total": 645.0, "vat": "none at all"}
    quotes = {
        "/number": {"page": 1, "quote": "Invoice INV-2024-17"},
        "/total": {"page": 1, "quote": "<b>Total</b> due: 645.00"},
        "/vat": {"page": 1, "quote": "no such words"},
    }
    with openai_server.running() as models:
        models.set_default(openai_server.data_reply(data, quotes))
        monkeypatch.setenv("ETL_LLM_BASE_URL", models.url)
        monkeypatch.setenv("ETL_LLM_MODEL", openai_server.MODEL)
        task = make_task(alice, text, rule=rule, filename="invoice.md", kind="md")
        workers.start(BOTH_QUEUES)
        page.goto(path(task))
        expect_status(page, "Completed")
    rows = page.locator("#json li")
    expect(rows.filter(has_text="vat")).to_contain_text("no source")
    expect(page.locator(".remarks")).to_contain_text("Some quotes were not found in the document")
    rows.filter(has_text="total").get_by_role("link").click()
    expect(page.locator("mark.quoted")).to_have_text(["Total", "due: 645.00 EUR"])
    expect(page.locator("mark.quoted").first).to_be_in_viewport()
    rows.filter(has_text="number").get_by_role("link").click()
    expect(page.locator("mark.quoted")).to_have_text("Invoice INV-2024-17")
    page.get_by_role("link", name="Source").click()
    expect(page.locator("#page-1 .source")).to_contain_text("| Desk lamp | 31.50 |")
    rows.filter(has_text="total").get_by_role("link").click()
    expect(page.locator("mark.quoted")).to_have_text("Total</b> due: 645.00 EUR")
    file = download(page, lambda: page.get_by_role("button", name="Download JSON").click(), tmp_path)
    assert file.name == "invoice.json"
    assert '"total": 645.0' in file.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("slow_images")
def test_a_value_is_shown_on_the_image_of_its_page(
    page: Page, alice: User, workers: Workers, monkeypatch: pytest.MonkeyPatch, accessible: Accessible
) -> None:
    """B30, B31: the citation of a value leads to its row on the image, and a block of the image to its text."""
    rule = make_rule(alice, mode="llm", name="Invoices")
    texts = ["Invoice INV-2024-17\n\nTotal due: 645.00 EUR", *(f"Terms of page {number}." for number in range(2, 23))]
    content = hostile.printed(*texts)
    with openai_server.running() as models:
        models.set_default(
            openai_server.data_reply({"total": 645.0}, {"/total": {"page": 1, "quote": "Total due: 645.00 EUR"}})
        )
        monkeypatch.setenv("ETL_LLM_BASE_URL", models.url)
        monkeypatch.setenv("ETL_LLM_MODEL", openai_server.MODEL)
        task = make_task(alice, rule=rule, filename="invoice.pdf", content=content, kind="pdf")
        workers.start(BOTH_QUEUES)
        page.goto(path(task))
        expect_status(page, "Completed", limit=150)
    image = page.locator("#image-1 > img")
    wait_until(lambda: image.evaluate("image => image.complete && image.naturalWidth") == 1240)
    assert page.locator("#images-list figure").count() == 20  # of 22

    page.locator("#json li", has_text="total").get_by_role("link").click()
    cited = page.locator("#image-1 rect.cited")
    expect(cited).to_be_in_viewport()
    box, page_box = cited.bounding_box(), image.bounding_box()
    assert box
    assert page_box
    assert box["y"] < page_box["y"] + page_box["height"] / 4
    assert box["height"] < page_box["height"] / 30  # one line
    expect(page.locator("mark.quoted")).to_have_text("Total due: 645.00 EUR")
    accessible(page)

    page.locator("#image-1 rect.block").first.hover()
    expect(page.locator("mark.quoted").first).to_contain_text("Invoice INV-2024-17")

    width = page_box["width"]
    page.locator("#images-list").focus()
    page.keyboard.press("+")
    wait_until(lambda: image.evaluate("image => image.clientWidth") > 1.4 * width)
    page.keyboard.press("-")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#image-2")).to_be_in_viewport()
    page.locator(".thumbnails a", has_text="22").click()
    expect(page.locator("#image-22")).to_be_in_viewport()


@pytest.mark.slow
@pytest.mark.usefixtures("slow_images")
def test_values_and_blocks_highlight_each_other(page: Page, alice: User) -> None:
    """B30: by mouse and by keyboard, and on the page for corrections as well."""
    scenes.with_page_images(alice)
    page.goto(scenes.newest(alice))
    cited, block = page.locator("#image-1 rect.cited"), page.locator("#image-1 rect.block.lit")
    expect(page.locator("#image-1 rect.block").first).to_be_attached()
    total = page.locator("#json li", has_text="total")
    total.locator(".value").hover()
    expect(cited).to_have_count(1)
    by_mouse = cited.bounding_box()
    page.locator("#json li", has_text="title").get_by_role("link").focus()
    assert by_mouse
    wait_until(lambda: (cited.bounding_box() or by_mouse)["y"] < by_mouse["y"])

    page.locator("#sheets .rendered > *").first.hover()
    expect(block).to_have_count(1)
    block.hover()
    expect(page.locator("#json li.lit")).to_contain_text("title")
    expect(page.locator("mark.quoted").first).to_be_visible()
    page.locator("#sheets .rendered").first.evaluate("each => each.append(document.createElement('hr'))")
    page.locator("#sheets .rendered > hr").hover()
    expect(page.locator("#image-1 rect.block.lit")).to_have_count(0)

    page.goto(f"{scenes.newest(alice)}/edit")
    page.get_by_label("total").focus()
    expect(cited).to_be_in_viewport()


@pytest.mark.slow
def test_images_of_500_pages_load_as_they_come_into_view(page: Page, alice: User) -> None:
    """B30: so do thumbnails."""
    task = scenes.many_pages(alice)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url) if "/api/v1/" in request.url else None)
    page.goto(path(task))
    page.wait_for_load_state("networkidle")
    expect(page.locator("#image-1 img")).to_be_visible()
    pages = [url for url in requested if "width=" not in url]
    assert 1 <= len(pages) <= 12, len(pages)
    assert len(requested) - len(pages) <= 120, len(requested)

    page.locator(".thumbnails a").last.scroll_into_view_if_needed()
    # The state "networkidle" has been reached before, so waiting for it again would not wait for this request.
    with page.expect_request(lambda request: request.url.endswith("/pages/500/image")):
        page.locator(".thumbnails a", has_text="500").click()
    expect(page.locator("#image-500")).to_be_in_viewport()
    page.wait_for_load_state("networkidle")
    assert f"{page.url.partition('/app')[0]}/api/v1/etl/tasks/{task.pk}/pages/500/image" in requested
    assert len(set(requested)) <= 300, len(set(requested))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 360])
def test_a_thumbnail_scrolls_its_page_to_the_top(page: Page, alice: User, width: int) -> None:
    """B30."""
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(path(scenes.many_pages(alice, 5)))
    page.locator(".thumbnails a[data-page='2']").click()
    distance = (
        "list => document.getElementById('image-2').getBoundingClientRect().top - list.getBoundingClientRect().top"
    )
    wait_until(lambda: abs(page.locator("#images-list").evaluate(distance)) < 10)


@pytest.mark.slow
def test_a_result_is_corrected_and_approved(
    page: Page, alice: User, accessible: Accessible, watch: PageMonitor
) -> None:
    """B37: its buttons work with the keyboard."""
    watch.expect("422")
    task = make_invoice(alice)
    page.goto(path(task))
    page.get_by_role("button", name="Correct the data").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("total")).to_have_value("90071992547409.930")
    accessible(page)
    page.get_by_label("number").fill("INV-71")
    page.get_by_role("button", name="Add a row to lines").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("item").nth(3)).to_be_focused()
    page.keyboard.type("Cable")
    page.get_by_label("Remove row 1", exact=True).check()
    page.get_by_label("quantity").nth(1).fill("many")
    page.keyboard.press("Enter")
    wrong = page.locator(".edit-field.wrong")
    expect(wrong).to_contain_text("Enter a number such as 1234.50")
    wrong.get_by_role("textbox").fill("4")
    page.keyboard.press("Enter")
    expect(page.locator("#messages")).to_contain_text("Correction saved.")
    expect(page.locator("#review")).to_contain_text("Not approved. Corrected by alice")
    expect(page.locator("#json li", has_text="number")).to_contain_text("INV-71")
    expect(page.locator("#json li", has_text="number")).to_contain_text("corrected")
    page.get_by_role("button", name="Approve").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#review")).to_contain_text("Approved by alice")
    page.locator("#changes summary").click()
    expect(page.locator("#changes")).to_contain_text("INV-17")
    accessible(page)


@pytest.mark.slow
def test_the_last_result_is_shown_until_a_new_one_is_available(page: Page, alice: User) -> None:
    """B33: it stays on the page while events update the progress above it."""
    scenes.extracted_again(alice)
    task = Task.objects.get()
    page.goto(path(task))
    expect(page.locator("#last #json")).to_contain_text("from an earlier run")
    expect(page.locator(".steps .now")).to_contain_text("Part 4 of 10.")
    expect(page.locator(".steps .now")).to_contain_text("Attempt 1 failed: The language model is unavailable.")
    running = page.locator("[data-elapsed]")
    before = running.text_content()
    wait_until(lambda: running.text_content() != before)
    page.locator("#json").get_by_role("link", name="Text").click()
    expect(page.locator("#last #raw")).to_contain_text("INV-2024-17")
    page.on("dialog", accept)
    page.get_by_role("button", name="Stop").click()
    expect_status(page, "Cancelled")
    expect(page.locator("#last")).to_have_count(0)
    expect(page.locator("#json")).to_have_count(1)


@pytest.mark.slow
def test_a_long_result_opens_at_once_and_loads_more_on_demand(page: Page, alice: User) -> None:
    scenes.long_document(alice)
    page.goto(scenes.newest(alice))
    assert page.locator(".sheet").count() < 50
    last = page.locator(".sheet").last
    before = page.locator(".sheet").count()
    last.scroll_into_view_if_needed()
    page.locator("#sheets").evaluate("sheets => { sheets.scrollTop = sheets.scrollHeight; }")
    wait_until(lambda: page.locator(".sheet").count() > before)

    page.locator("a.cite", has_text="page 250").click()
    expect(page.locator("mark.quoted")).to_have_text("Chapter 250")
    expect(page.locator("mark.quoted")).to_be_in_viewport()
    page.get_by_role("link", name="Show previous pages").click()
    expect(page.locator("#page-249")).to_be_visible()
    page.get_by_role("link", name="Show more of 10,000 items").click()
    expect(page.locator("#json summary", has_text=re.compile("^101 "))).to_be_visible()


@pytest.mark.slow
def test_the_tree_opens_by_keyboard(page: Page, alice: User) -> None:
    task = scenes.make_pdf(alice)
    scenes.finish_ocr(task)
    scenes.finish_postprocessing(
        task,
        {"deep": {str(n): [] for n in range(2)} | {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": 1}}}}}}}}}},
    )
    page.goto(path(task))
    for name in "bcdefgh":
        summary = page.locator("#json summary", has_text=re.compile(f"^{name} "))
        if not summary.locator("..").evaluate("details => details.open"):
            summary.focus()
            page.keyboard.press("Enter")
    expect(page.locator("#json .value")).to_have_text("1")


# ---- Batches --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_batch_is_uploaded_and_followed_to_its_end(
    page: Page, alice: User, accessible: Accessible, tmp_path: Path
) -> None:
    """C1, B36: the page updates automatically, and the list of a batch links to its documents."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"The text of {name}.")
    page.goto(f"{LIST}/batches")
    page.get_by_label("Documents, or one ZIP file").set_input_files([tmp_path / "a.txt", tmp_path / "b.txt"])
    page.get_by_label("Name (optional)").fill("March")
    page.get_by_role("button", name="Upload batch").click()
    expect(page.get_by_role("heading", name="March")).to_be_visible()
    expect(page.get_by_text("2 documents uploaded.")).to_be_visible()
    first, second = Task.objects.order_by("pk")
    complete(first)
    expect(page.get_by_text("50 % done.").first).to_be_visible(timeout=30 * MS_PER_SECOND)
    fail(second)
    expect(page.get_by_text("1 of 2 documents completed.")).to_be_visible(timeout=30 * MS_PER_SECOND)
    expect(page.get_by_role("button", name="Retry 1 failed document")).to_be_visible()
    accessible(page)
    file = download(page, lambda: page.get_by_role("button", name="Download").click(), tmp_path)
    assert file.read_text("utf-8-sig").startswith("task_id,filename")
    page.get_by_role("link", name="a.txt").click()
    expect(page.get_by_role("link", name="← Batch")).to_be_visible()
