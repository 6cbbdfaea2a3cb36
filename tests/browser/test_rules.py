"""Rules in a browser: lists, typing, validation while typing, rule tests, saving, comparison, and restoring. C1."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, Route, expect

from config.dev.stack.processes import Web
from rules.library import editing
from rules.loading import system_rules
from rules.models import Rule, RuleVersion
from rules.pages import schema_text
from tests.browser import scenes_rules
from tests.browser.conftest import Accessible, PageMonitor, fits_width, sign_in
from tests.browser.scenes_rules import content
from tests.integration import openai_server
from tests.integration.openai_server import MODEL, ModelServer, data_reply, problem
from tests.integration.test_rules_pages import read_document  # noqa: F401 - a fixture
from tests.serving import serving, variables


@pytest.fixture(scope="module")
def model_server() -> Iterator[ModelServer]:
    with openai_server.running() as server:
        yield server


@pytest.fixture
def models(model_server: ModelServer) -> ModelServer:
    model_server.requests.clear()
    model_server.script.clear()
    model_server.otherwise = None
    return model_server


@pytest.fixture(scope="module")
def served(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory, model_server: ModelServer) -> Iterator[Web]:
    """A web process with a scripted language model."""
    root = tmp_path_factory.mktemp("web")
    model = {"ETL_LLM_BASE_URL": model_server.url, "ETL_LLM_MODEL": MODEL, "ETL_LLM_TIMEOUT_SECONDS": "30"}
    with serving(root, variables(root, **model)) as running:
        yield running


@pytest.fixture
def rule(alice: User) -> Rule:
    return editing.create(owner=alice, values=content())


@pytest.fixture
def editor(page: Page, rule: Rule) -> Page:
    page.goto(f"/app/rules/{rule.pk}")
    return page


def type_schema(page: Page, text: str) -> None:
    page.get_by_label("JSON Schema", exact=True).fill(text)


def selected(page: Page) -> str:
    area = page.get_by_label("JSON Schema", exact=True)
    return str(area.evaluate("area => area.value.slice(area.selectionStart, area.selectionEnd)"))


def save(page: Page) -> None:
    page.locator("#editor .save").click()


# ---- Lists and creation ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_empty_list_explains_rules_and_offers_copies(page: Page, alice: User, accessible: Accessible) -> None:
    system_rules.load_all()
    page.goto("/app/rules?whose=mine")
    expect(page.locator(".empty")).to_contain_text("a prompt and a JSON Schema")
    accessible(page)
    page.get_by_role("link", name="Copy a system rule").click()
    page.get_by_role("link", name="Receipt", exact=True).click()
    expect(page.get_by_text("This is a system rule")).to_be_visible()
    accessible(page)
    page.get_by_role("button", name="Copy", exact=True).click()
    expect(page.locator("#check")).to_contain_text("can be saved")
    accessible(page)
    save(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("Receipt (mine)")
    mine = Rule.objects.get(owner=alice)
    assert mine.json_schema == Rule.objects.get(slug="receipt").json_schema
    page.goto("/app/rules?whose=mine")
    expect(page.get_by_role("row")).to_have_count(2)
    accessible(page)


@pytest.mark.slow
def test_a_rule_can_be_created_from_scratch(page: Page, alice: User) -> None:
    page.goto("/app/rules/new")
    page.get_by_label("Name", exact=True).fill("Tickets")
    page.get_by_label("Prompt", exact=True).fill("You read tickets.\nGive what is printed.")
    page.get_by_label("Piece by piece").check()
    save(page)
    expect(page.get_by_role("status").first).to_contain_text("Rule “Tickets” created.")
    rule = Rule.objects.get(owner=alice)
    assert (rule.name, rule.postprocess_strategy) == ("Tickets", "chunked-extract")
    assert rule.system_prompt == "You read tickets.\nGive what is printed."
    page.reload()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("You read tickets.\nGive what is printed.")


# ---- Typing ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_schema_errors_appear_while_typing_and_link_to_their_location(editor: Page, accessible: Accessible) -> None:
    page = editor
    expect(page.locator("#check")).to_contain_text("4 of 32 levels")
    type_schema(
        page,
        '{\n  "type": "object",\n  "properties": {\n    "🎉": {"type": "text"},\n    "b": {"$ref": "x.json"}\n  }\n}',
    )
    expect(page.locator("#check")).to_contain_text("/properties/b/$ref")
    seek = page.get_by_role("button", name="JSON Schema, line 5")
    expect(page.locator(".gutter .flawed")).to_have_text("5")
    accessible(page)
    seek.click()
    expect(page.get_by_label("JSON Schema", exact=True)).to_be_focused()
    assert selected(page) == '"x.json"'

    type_schema(page, '{\n  "type": "object",\n  "properties": {"🎉": {"type": "text"}}\n}')
    expect(page.locator("#check")).to_contain_text("/properties/🎉/type")
    page.get_by_role("button", name="JSON Schema, line 3").click()
    assert selected(page) == '"text"'

    type_schema(page, '{\n  "type": object\n}')
    expect(page.locator("#check")).to_contain_text("not JSON")
    page.get_by_role("button", name="JSON Schema, line 2").click()
    page.keyboard.press("ArrowLeft")
    page.keyboard.type('"')
    page.get_by_label("Name", exact=True).fill(" ")
    expect(page.locator("#check")).to_contain_text("may not be blank")
    page.get_by_role("button", name="Name").click()
    expect(page.get_by_label("Name", exact=True)).to_be_focused()
    page.get_by_label("Name", exact=True).fill("Tickets")
    type_schema(page, '{"type": "object"}')
    expect(page.locator("#check")).to_contain_text("can be saved")


@pytest.mark.slow
def test_tab_indents_and_escape_releases_the_focus(editor: Page) -> None:
    page = editor
    area = page.get_by_label("JSON Schema", exact=True)
    area.fill("{")
    area.press("End")
    area.press("Enter")
    page.keyboard.type('"type": "object"')
    expect(area).to_have_value('{\n  "type": "object"')
    page.keyboard.press("Shift+Tab")
    expect(area).to_have_value('{\n"type": "object"')
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.press("Tab")
    expect(area).to_have_value('  {\n  "type": "object"')
    page.keyboard.press("ControlOrMeta+z")
    expect(area).to_have_value('{\n"type": "object"')
    expect(area).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(area).not_to_be_focused()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Escape")
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Format")).to_be_focused()


def test_formatting_the_schema_can_be_undone(editor: Page) -> None:
    page = editor
    typed = '{"required":["a"],"type":"object","properties":{"a":{"type":["string","null"]}}}'
    type_schema(page, typed)
    page.get_by_role("button", name="Format").click()
    area = page.get_by_label("JSON Schema", exact=True)
    expect(area).to_have_value(schema_text.write(json.loads(typed)))
    expect(page.locator(".gutter span")).to_have_count(9)
    page.keyboard.press("ControlOrMeta+z")
    expect(area).to_have_value(typed)

    type_schema(page, "{ oops")
    page.get_by_role("button", name="Format").click()
    expect(page.locator("#check")).to_contain_text("not JSON")
    expect(area).to_have_value("{ oops")


# ---- The table of fields, by keyboard -------------------------------------------------------------------------------


def schema_of(page: Page) -> Any:
    return json.loads(page.get_by_label("JSON Schema", exact=True).input_value())


def wait_for_schema(page: Page, words: str) -> None:
    page.wait_for_function("words => document.getElementById('id_json_schema').value.includes(words)", arg=words)


@pytest.mark.slow
def test_the_table_and_the_text_stay_in_sync(editor: Page, accessible: Accessible) -> None:
    page = editor
    name = page.get_by_label("Name of field 1")
    name.focus()
    name.fill("registration")
    wait_for_schema(page, '"registration"')
    expect(name).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Description of plate", exact=True)).to_be_focused()
    page.keyboard.type(" Without blanks")
    wait_for_schema(page, "Without blanks")
    assert schema_of(page)["required"] == ["registration", "amount"]
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.locator("#check")).to_contain_text("can be saved")
    page.wait_for_function("() => JSON.parse(document.getElementById('id_json_schema').value).required.length === 1")
    expect(page.locator("#field-0-required")).to_be_focused()

    page.locator("#fields > button").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Name of field 3")).to_be_focused()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("lines")
    page.get_by_label("Type of").nth(2).select_option("objects")
    add = page.get_by_role("button", name="Add a field to lines")
    add.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Name of field 4")).to_be_focused()
    accessible(page)
    remove = page.locator("#field-3-remove")
    remove.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Name of field 4")).to_have_count(0)
    assert page.evaluate("document.activeElement !== document.body")
    type_schema(page, '{"type": "object", "properties": {"only": {"type": "boolean"}}}')
    expect(page.get_by_label("Name of field 1")).to_have_value("only")
    expect(page.get_by_label("Name of field 2")).to_have_count(0)
    page.get_by_label("Name of field 1").fill("")
    expect(page.locator("#check")).to_contain_text("Enter a name.")
    expect(page.get_by_label("Name of field 1")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Name of field 1")).to_have_value("")


@pytest.mark.slow
def test_errors_are_shown_beside_their_line(editor: Page) -> None:
    page = editor
    type_schema(page, '{\n  "type": "object",\n  "properties": {"a": {"type": "text"}}\n}')
    area = page.get_by_label("JSON Schema", exact=True)
    note = page.locator(".beside span")
    expect(note).to_contain_text("one of")
    expect(area).to_have_attribute("aria-invalid", "true")
    number, text = page.locator(".gutter .flawed").bounding_box(), note.bounding_box()
    assert number
    assert text
    assert abs(number["y"] - text["y"]) < 2
    type_schema(page, '{"type": "object"}')
    expect(note).to_have_count(0)
    expect(area).not_to_have_attribute("aria-invalid", "true")


@pytest.mark.slow
def test_the_trial_is_beside_the_editor_and_a_new_form_shows_no_errors(page: Page, alice: User) -> None:
    page.goto("/app/rules/new")
    expect(page.locator("#check")).to_contain_text("Enter a name to save the rule.")
    assert page.locator(".wrong:visible, .flawed:visible, [aria-invalid=true]").count() == 0
    form, trial = page.locator("#editor").bounding_box(), page.locator("#try").bounding_box()
    assert form
    assert trial
    assert trial["x"] >= form["x"] + form["width"]
    expect(page.get_by_role("button", name="Run test")).to_be_in_viewport()


@pytest.mark.slow
def test_a_suggested_schema_can_be_undone(editor: Page, models: ModelServer, rule: Rule) -> None:
    page = editor
    before = page.get_by_label("JSON Schema", exact=True).input_value()
    field = {"name": "until", "kind": "date", "description": "Printed below.", "required": True, "fields": None}
    models.set_default(data_reply({"fields": [field]}))
    page.get_by_label("Markdown to test with").fill("Until 2026-03-01")
    page.get_by_role("button", name="Suggest a schema").click()
    expect(page.locator("#outcome")).to_contain_text("Schema suggested: 1 field.")
    expect(page.get_by_label("Name of field 1")).to_have_value("until")
    page.get_by_label("JSON Schema", exact=True).focus()
    page.keyboard.press("ControlOrMeta+z")
    expect(page.get_by_label("JSON Schema", exact=True)).to_have_value(before)
    expect(page.get_by_label("Name of field 2")).to_have_value("amount")
    rule.refresh_from_db()
    assert rule.version == 1


# ---- Saving ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_invalid_rule_stays_in_the_form(editor: Page, rule: Rule, accessible: Accessible) -> None:
    page = editor
    page.get_by_label("Name", exact=True).fill("")
    type_schema(page, '{"type": "text"}')
    save(page)
    expect(page.get_by_role("alert").first).to_contain_text("Not saved")
    expect(page.get_by_label("JSON Schema", exact=True)).to_have_value('{"type": "text"}')
    accessible(page)
    page.get_by_role("button", name="JSON Schema, line 1").click()
    assert selected(page) == '"text"'
    page.keyboard.type('"object"')
    page.get_by_label("Name", exact=True).fill("Repaired")
    save(page)
    expect(page.get_by_role("status").first).to_contain_text("Saved as version 2")
    rule.refresh_from_db()
    assert (rule.name, rule.json_schema) == ("Repaired", {"type": "object"})


@pytest.mark.slow
def test_the_second_of_two_tabs_resolves_the_edit_conflict(
    editor: Page, context: BrowserContext, watch: PageMonitor, rule: Rule, accessible: Accessible
) -> None:
    first, second = editor, watch.monitored(context.new_page())
    second.goto(f"/app/rules/{rule.pk}")
    first.bring_to_front()  # as a person would
    first.get_by_label("Prompt", exact=True).fill("From the first tab.")
    save(first)
    expect(first.get_by_role("status").first).to_contain_text("version 2")

    second.get_by_label("Prompt", exact=True).fill("From the second tab.")
    save(second)
    expect(second.get_by_role("alert").first).to_contain_text("was changed while you edited it")
    expect(second.get_by_label("Prompt", exact=True)).to_have_value("From the second tab.")
    expect(second.locator(".diff .removed")).to_contain_text(["From the first tab."])
    accessible(second)
    rule.refresh_from_db()
    assert rule.system_prompt == "From the first tab."
    second.get_by_role("button", name="Overwrite version 2").click()
    expect(second.get_by_role("status").first).to_contain_text("version 3")
    rule.refresh_from_db()
    assert (rule.version, rule.system_prompt) == (3, "From the second tab.")


@pytest.mark.slow
def test_typed_text_survives_server_errors_and_outages(editor: Page, watch: PageMonitor, rule: Rule) -> None:
    page = editor
    for words in ("503", "Failed to load", "htmx:"):
        watch.expect(words)
    page.get_by_label("Prompt", exact=True).fill("Long work.")
    expect(page.locator("#check")).to_contain_text("can be saved")

    def fail(route: Route) -> None:
        route.fulfill(status=503, content_type="text/html", body="<main><p>The database does not answer.</p></main>")

    for fault, message in (
        (fail, "The database does not answer."),
        (lambda route: route.abort(), "Could not reach the server"),
    ):
        page.route(f"**/app/rules/{rule.pk}", fault)
        save(page)
        expect(page.locator("#unsaved")).to_contain_text(message)
        expect(page.locator("#unsaved")).to_be_in_viewport()
        expect(page.get_by_label("Prompt", exact=True)).to_have_value("Long work.")
        page.unroute(f"**/app/rules/{rule.pk}")
    save(page)
    expect(page.get_by_role("status").first).to_contain_text("Saved as version 2")


@pytest.mark.slow
def test_a_user_signed_out_while_typing_can_sign_in_and_save(
    editor: Page, context: BrowserContext, watch: PageMonitor, alice: User, rule: Rule
) -> None:
    page = editor
    watch.expect("401")
    page.get_by_label("Prompt", exact=True).fill("Long work.")
    expect(page.locator("#check")).to_contain_text("can be saved")
    context.clear_cookies(name=settings.SESSION_COOKIE_NAME)
    save(page)
    expect(page.locator("#unsaved")).to_contain_text("Sign in in another tab")
    sign_in(context, alice)
    watch.monitored(context.new_page()).goto("/app/account")  # a page with a form and another CSRF token
    save(page)
    expect(page.get_by_role("status").first).to_contain_text("Saved as version 2")
    rule.refresh_from_db()
    assert rule.system_prompt == "Long work."


@pytest.mark.slow
def test_leaving_with_unsaved_changes_asks_for_confirmation(editor: Page, rule: Rule) -> None:
    page = editor
    dialogs: list[str] = []

    def stay(dialog: Dialog) -> None:
        dialogs.append(dialog.type)
        dialog.dismiss()

    page.get_by_label("Name", exact=True).press("End")
    page.keyboard.type(" 2")
    page.on("dialog", stay)
    with page.expect_event("dialog"):
        page.get_by_role("link", name="Webhooks").click(no_wait_after=True)
    expect(page.get_by_label("Name", exact=True)).to_have_value("Parking tickets of district 0 2")
    assert dialogs == ["beforeunload"]


@pytest.mark.slow
def test_leaving_asks_after_edits_of_the_table_but_not_after_choosing_a_document(
    editor: Page,
    rule: Rule,
    read_document: Any,  # noqa: F811
) -> None:
    page = editor
    dialogs: list[str] = []

    def stay(dialog: Dialog) -> None:
        dialogs.append(dialog.type)
        dialog.dismiss()

    page.on("dialog", stay)
    page.reload()
    page.get_by_label("Markdown of a document", exact=True).select_option(str(read_document.pk))
    expect(page.get_by_label("Markdown to test with")).not_to_have_value("")
    page.get_by_role("link", name="Webhooks").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Webhooks")
    assert dialogs == []

    page.goto(f"/app/rules/{rule.pk}")
    page.locator("#field-1-remove").click()
    expect(page.locator("#field-1-remove")).to_have_count(0)
    with page.expect_event("dialog"):
        page.get_by_role("link", name="Webhooks").click(no_wait_after=True)
    expect(page.get_by_label("Name", exact=True)).to_be_visible()
    assert dialogs == ["beforeunload"]


def test_deleting_a_rule_asks_for_confirmation(editor: Page, rule: Rule) -> None:
    page = editor
    page.get_by_text("Delete this rule").click()
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Delete “").click()
    rule.refresh_from_db()
    assert rule.deleted_at is None
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete “").click()
    expect(page.get_by_role("status").first).to_contain_text("Rule “Parking tickets of district 0” deleted.")
    rule.refresh_from_db()
    assert rule.deleted_at is not None


# ---- Versions -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_versions_can_be_compared_and_restored(page: Page, alice: User, accessible: Accessible) -> None:
    scenes_rules.edited(alice)
    rule = scenes_rules.newest(alice)
    page.goto(f"/app/rules/{rule.pk}")
    page.get_by_role("link", name="Version 3").click()
    expect(page.locator(".diff .added").first).to_contain_text("Whole document")
    accessible(page)
    page.get_by_role("spinbutton", name="From").fill("1")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", name="From version 1 to version 3")).to_be_visible()
    expect(page.get_by_role("region", name="Changes of Prompt")).to_contain_text("removed")

    page.get_by_role("link", name="Version 1").click()
    expect(page.get_by_text("The current version is 3")).to_be_visible()
    accessible(page)
    page.get_by_role("button", name="Restore this version").click()
    expect(page.get_by_role("status").first).to_contain_text("Version 1 restored as version 4.")
    rule.refresh_from_db()
    assert (rule.version, rule.postprocess_strategy, rule.system_prompt) == (4, "", content()["system_prompt"])
    assert RuleVersion.objects.filter(rule=rule).count() == 4


# ---- Trials --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_unsaved_rule_can_be_tried(editor: Page, models: ModelServer, rule: Rule, accessible: Accessible) -> None:
    page = editor
    models.set_default(
        data_reply({"plate": "B-XY 123", "amount": 4.5}, {"/amount": {"page": 1, "quote": "Paid: 4.50 EUR"}})
    )
    page.get_by_label("Prompt", exact=True).fill("An unsaved prompt.")
    page.get_by_label("Markdown to test with").fill("Plate B-XY 123\n\nPaid: 4.50 EUR")
    page.locator("#try").get_by_role("button", name="Run test").click()
    expect(page.locator("#outcome pre")).to_contain_text('"plate": "B-XY 123"')
    expect(page.get_by_role("row").filter(has_text="/amount")).to_contain_text("Paid: 4.50 EUR")
    expect(page.locator("#outcome")).to_contain_text("11 tokens in, 7 out")
    accessible(page)
    assert "An unsaved prompt." in models.requests[0].message("system")
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("An unsaved prompt.")
    rule.refresh_from_db()
    assert rule.version == 1


@pytest.mark.slow
def test_a_failed_trial_is_explained(editor: Page, models: ModelServer, accessible: Accessible) -> None:
    page = editor
    models.set_default(problem(401))
    page.get_by_label("Markdown to test with").fill("Paid: 4.50 EUR")
    try_it = page.locator("#try").get_by_role("button", name="Run test")
    try_it.click()
    expect(page.locator("#outcome")).to_contain_text("Test failed.")
    expect(page.locator("#outcome")).to_contain_text("llm_unavailable")
    accessible(page)
    type_schema(page, "{")
    try_it.click()
    expect(page.locator("#outcome")).to_contain_text("Test not run.")


@pytest.mark.slow
def test_the_markdown_of_a_document_can_be_used(editor: Page, models: ModelServer, read_document: Any) -> None:  # noqa: F811
    page = editor
    page.reload()
    page.get_by_label("Markdown of a document", exact=True).select_option(str(read_document.pk))
    expect(page.get_by_label("Markdown to test with")).to_have_value("Total: 12.50 EUR\n")
    models.set_default(data_reply({"plate": None, "amount": 12.5}))
    page.locator("#try").get_by_role("button", name="Run test").click()
    expect(page.locator("#outcome pre")).to_contain_text("12.5")
    assert "Total: 12.50 EUR" in models.requests[0].message("user")


@pytest.mark.slow
def test_a_system_rule_can_be_tried(page: Page, models: ModelServer, alice: User) -> None:
    system_rules.load_all()
    page.goto(f"/app/rules/{Rule.objects.get(slug='default').pk}")
    page.get_by_label("Markdown to test with").fill("Hello")
    page.get_by_role("button", name="Run test").click()
    expect(page.locator("#outcome")).to_contain_text("No model calls")
    assert models.requests == []


# ---- Without scripts, and on a phone --------------------------------------------------------------------------------


@pytest.fixture
def plain(browser: Browser, browser_context_args: dict[str, Any], watch: PageMonitor, alice: User) -> Iterator[Page]:
    """A browser page without scripts."""
    context = browser.new_context(**browser_context_args, java_script_enabled=False)
    sign_in(context, alice)
    yield watch.monitored(context.new_page())
    context.close()


@pytest.mark.slow
def test_everything_works_without_scripts(plain: Page, models: ModelServer, rule: Rule) -> None:
    page = plain
    page.goto(f"/app/rules/{rule.pk}")
    models.set_default(data_reply({"plate": "B-XY 123", "amount": None}))
    page.get_by_label("Prompt", exact=True).fill("Typed without scripts.")
    page.get_by_label("Markdown to test with").fill("Plate B-XY 123")
    page.locator("#try").get_by_role("button", name="Run test").click()
    expect(page.locator("#outcome pre")).to_contain_text("B-XY 123")
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("Typed without scripts.")
    expect(page.get_by_label("Markdown to test with")).to_have_value("Plate B-XY 123")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("Saved as version 2")
    page.get_by_label("JSON Schema", exact=True).fill('{\n"type": 3}')
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#check")).to_contain_text("line 2")
    rule.refresh_from_db()
    assert (rule.version, rule.system_prompt) == (2, "Typed without scripts.")


@pytest.mark.slow
def test_it_fits_a_phone(page: Page, alice: User, models: ModelServer) -> None:
    scenes_rules.edited(alice)
    rule = scenes_rules.newest(alice)
    page.set_viewport_size({"width": 390, "height": 800})
    system = Rule.objects.get(slug="invoice").pk
    for path in ("", "/new", f"/{rule.pk}", f"/{system}", f"/{rule.pk}/versions", f"/{rule.pk}/versions/1"):
        page.goto(f"/app/rules{path}")
        assert fits_width(page), path
    page.goto(f"/app/rules/{rule.pk}")
    long = {"plate": "B-XY 123 " * 30, "amount": 4.5}
    models.set_default(data_reply(long, {"/plate": {"page": 1, "quote": "B-XY 123 " * 30}}))
    type_schema(page, json.dumps({"type": "object", "properties": {"a" * 200: {"type": "x"}}}))
    expect(page.locator("#check")).to_contain_text("one of")
    assert fits_width(page)
    type_schema(page, json.dumps({"type": "object"}))
    page.get_by_label("Markdown to test with").fill("B-XY 123 " * 30)
    page.locator("#try").get_by_role("button", name="Run test").click()
    expect(page.locator("#outcome pre")).to_be_visible()
    assert fits_width(page)


@pytest.mark.slow
def test_a_drop_in_accuracy_is_marked(page: Page, alice: User) -> None:
    scenes_rules.evaluated(alice)
    page.goto(scenes_rules.path_of(alice, "/evaluations?a=1&b=2"))
    color = "each => getComputedStyle(each).color"
    assert page.locator("dd.wrong").first.evaluate(color) != page.locator("dd").first.evaluate(color)
