"""Pages for correction and approval of a result, in a browser without scripts. B37."""

import re
from decimal import Decimal
from html import unescape
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import Permission, User
from django.test import Client

from config.platform import exact_json
from etl.models import ReviewEvent, Task
from etl.pages.edit_form import MAX_FIELDS, MAX_NEW_FIELDS, ROWS, EditForm
from etl.pipeline import actions, review
from tests.conftest import browser_of, change_settings
from tests.integration.etl_factories import make_task
from tests.integration.etl_progress import complete
from tests.integration.reviewed import DATA, make_invoice
from tests.integration.stage_runs import row_of

pytestmark = pytest.mark.usefixtures("configure_stages")
CONTROL = re.compile(
    r'<(?:input|textarea|select)[^>]* name="(?P<name>[vnt][^"]*)"[^>]*?(?: value="(?P<value>[^"]*)"[^>]*)?>'
    r"(?:\n(?P<text>[^<]*)</textarea>|(?P<options>(?:<option[^>]*>[^<]*</option>)+)</select>)?",
    re.DOTALL,
)
SELECTED = re.compile(r'<option value="([^"]*)" selected>')


@pytest.fixture
def client(alice: User) -> Client:
    return browser_of(alice)


@pytest.fixture
def task(alice: User) -> Task:
    return make_invoice(alice)


def path(task: Task, part: str = "/edit") -> str:
    return f"/app/documents/{task.pk}{part}"


def data(task: Task) -> Any:
    return row_of(task).current_result["data"]  # type: ignore[index]


def fields(client: Client, url: str) -> dict[str, str]:
    """Return the fields of the form as a browser sends them if the user changes nothing."""
    page = client.get(url).content.decode()
    form = page[page.index('<form method="post" class="pane edit"') :]
    found = {}
    for match in CONTROL.finditer(form[: form.index("</form>")]):
        chosen = SELECTED.search(match["options"] or "")
        value = chosen[1] if chosen else (match["text"] if match["text"] is not None else match["value"])
        found[unescape(match["name"])] = unescape(value or "")
    return found


def send(client: Client, task: Task, *, query: str = "", **changes: Any) -> Any:
    """Send the current form with changes. None omits a field."""
    url = path(task) + query
    form = {name: value for name, value in (fields(client, url) | changes).items() if value is not None}
    return client.post(url, form)


def test_the_form_has_a_control_for_each_value_typed_by_the_schema(task: Task, client: Client) -> None:
    """B37: with the value, the description, and the position in the document."""
    page = client.get(path(task)).content.decode()
    for control in (
        'name="v/date" type="date" value="2024-02-29"',
        'name="v/total" type="text" inputmode="decimal" value="90071992547409.930"',
        'name="v/lines/0/price" type="text" inputmode="decimal" value="31.50"',
        '<option value="&quot;invoice&quot;" selected>invoice</option>',
        '<option value="false" selected>no</option>',
        "As printed at the top",
        'data-bbox="0 0 9 9"',
        'name="add" value="/tags"',
    ):
        assert control in page, control


def test_a_form_without_changes_changes_nothing(task: Task, client: Client) -> None:
    """B37: including digits of numbers, nulls, and missing members."""
    before = exact_json.dumps(data(task))
    assert send(client, task).status_code == 302
    assert exact_json.dumps(data(task)) == before
    assert not ReviewEvent.objects.exists()


def test_a_rate_limit_keeps_the_entered_values(task: Task, client: Client, settings: LazySettings) -> None:
    change_settings(settings, etl_rate="1/min")
    assert send(client, task, **{"v/number": "INV-71"}).status_code == 302
    refused = send(client, task, **{"v/number": "INV-72"})
    assert (refused.status_code, 'value="INV-72"' in refused.content.decode()) == (429, True)
    assert data(task)["number"] == "INV-71"


def test_a_correction_whose_approval_fails_is_reported_as_saved(task: Task, client: Client) -> None:
    """The run-state is unavailable for the approval only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(review, "approve", unavailable)
        saved = client.post(
            path(task), fields(client, path(task)) | {"v/number": "INV-71", "approve": "1"}, follow=True
        )
    assert "Correction saved, but not approved." in saved.content.decode()
    assert data(task)["number"] == "INV-71"


def unavailable(*_args: Any, **_options: Any) -> None:
    raise actions.RunStateUnavailable


def test_an_emptied_text_without_an_object_is_empty() -> None:
    form = EditForm({"type": "string"}, "x", {}, posted={"v": ""})
    assert (form.entered, form.has_errors) == ("", False)
    assert EditForm({"type": "number"}, 1, {}, posted={"v": ""}).has_errors


def test_values_of_all_kinds_are_corrected(task: Task, client: Client) -> None:
    """B37: the document's page shows the user and the previous value."""
    changes = {
        "v/number": "INV-71", "v/total": "12.340", "v/date": "", "v/kind": '"credit note"', "v/paid": "true",
        "v/supplier/vat": "DE 1", "v/lines/1/quantity": "4", "drop/lines/2": "1",
    }  # fmt: skip
    answer = send(client, task, **changes)

    assert answer.status_code == 302, answer.content.decode()
    found = data(task)
    lines = exact_json.loads(DATA)["lines"]
    assert exact_json.dumps(found["total"]) == b"12.340"
    assert found | {"total": 0} == {
        "number": "INV-71", "date": None, "kind": "credit note", "paid": True, "total": 0,
        "supplier": {"name": "Bright Lamps Ltd", "vat": "DE 1"}, "lines": [lines[0], lines[1] | {"quantity": 4}],
    }  # fmt: skip
    assert list(found) == list(exact_json.loads(DATA)), "members keep their order"
    page = client.get(path(task, "")).content.decode()
    assert "Corrected by alice" in page
    assert "<code>/number</code></td><td>INV-17</td><td>INV-71</td>" in page
    assert "12.340" in page
    assert client.get(path(task, "/json")).content == exact_json.dumps(found, indent=True)


def test_a_value_does_not_take_the_citation_of_a_row_that_the_form_removed(task: Task, client: Client) -> None:
    """B37."""
    changes = {"drop/lines/0": "1", "drop/lines/2": "1", "v/lines/1/item": "Lamp", "v/lines/1/price": "31.50"}
    assert send(client, task, **changes).status_code == 302
    shown = row_of(task).current_result or {}
    assert shown["data"]["lines"] == [{"item": "Lamp", "quantity": 3, "price": Decimal("31.50")}]
    found = {each["pointer"]: each["match"] for each in shown["citations"]}
    assert (found["/lines/0/item"], found["/lines/0/price"]) == ("corrected", "corrected")


def test_adding_a_row_keeps_the_entered_values(task: Task, client: Client) -> None:
    """B37: adding a row saves nothing."""
    shown = send(client, task, **{"v/number": "INV-71", "drop/lines/0": "1", "add": "/lines"})
    page = shown.content.decode()
    assert (shown.status_code, 'name="v/number" type="text" value="INV-71"' in page) == (200, True)
    assert 'name="drop/lines/0" value="1" checked' in page
    assert page.count("autofocus") > 0
    assert data(task)["number"] == "INV-17"

    form = {"n/lines": "5", "v/lines/3/item": "Cable", "v/lines/3/price": "1.10", "v/lines/4/item": ""}
    assert send(client, task, **form, **{"n/tags": "1", "v/tags/0": "paper"}).status_code == 302
    assert [line["item"] for line in data(task)["lines"]] == ["Desk lamp", "Floor lamp", "Bulb", "Cable"]
    assert data(task)["tags"] == ["paper"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"v/total": "12,50 EUR"}, "Enter a number such as 1234.50"),
        ({"v/total": "1e-99999999999999999999"}, "The exponent of the number is out of range."),
        ({"v/number": "INV\0"}, "Remove the NUL character"),
        ({"v/total": ""}, "Enter a value."),
        ({"v/lines/1/quantity": "1.5"}, "integer"),
        ({"v/kind": '"receipt"'}, "Choose one of the values."),
        ({"drop/lines/0": "1", "v/lines/2/item": "", "v/lines/2/quantity": "1.5"}, "integer"),
    ],
)
def test_errors_are_shown_at_their_fields_and_nothing_is_saved(
    task: Task, client: Client, changes: dict[str, str], reason: str
) -> None:
    """B37."""
    answer = send(client, task, **changes)
    page = answer.content.decode()
    assert (answer.status_code, row_of(task).corrections) == (422, 0)
    assert reason in page
    wrong = re.findall(r'class="field edit-field wrong".*?name="v([^"]*)"', page, re.DOTALL)
    assert wrong, page
    assert f"/{list(changes)[-1][2:]}" in wrong


def test_the_first_of_two_concurrent_changes_is_kept(task: Task, client: Client, alice: User) -> None:
    """B37: the second user sees the current data and their own input."""
    form = fields(client, path(task)) | {"v/number": "INV-72"}
    review.correct(row_of(task), lambda old: old | {"number": "INV-71"}, user=alice, if_match="*")
    answer = client.post(path(task), form)
    page = answer.content.decode()
    assert answer.status_code == 412
    assert "This result was changed while you were editing." in page
    assert "<code>/number</code> INV-72" in page
    assert 'name="v/number" type="text" value="INV-71"' in page
    assert data(task)["number"] == "INV-71"


def test_adding_a_row_does_not_hide_a_concurrent_change(task: Task, client: Client, alice: User) -> None:
    """B37: the entered values belong to the version of the result that the user opened."""
    opened = fields(client, path(task))
    review.correct(row_of(task), lambda old: old | {"number": "INV-71"}, user=alice, if_match="*")
    tag = re.search(r'name="tag" value="([^"]*)"', client.post(path(task), opened | {"add": "/lines"}).content.decode())
    assert tag
    answer = client.post(path(task), opened | {"tag": unescape(tag[1])})
    assert (answer.status_code, data(task)["number"]) == (412, "INV-71")


def test_large_lists_have_separate_pages(alice: User, client: Client) -> None:
    """B37: a long list is shown in parts, and saving a part does not change the other rows."""
    count = MAX_FIELDS
    lines = ",".join(f'{{"item": "Item {n}", "quantity": {n}}}' for n in range(count))
    task = make_invoice(alice, f'{{"number": "1", "total": 1, "lines": [{lines}]}}')
    whole = client.get(path(task)).content.decode()
    assert 'href="?at=%2Flines#edit"' in whole
    assert 'name="v/lines/0/item"' not in whole

    query = f"?at=%2Flines&from={ROWS}"
    shown = fields(client, path(task) + query)
    assert f"v/lines/{ROWS}/item" in shown
    assert f"v/lines/{ROWS - 1}/item" not in shown
    changes = {f"v/lines/{ROWS}/item": "Changed", f"drop/lines/{ROWS + 1}": "1"}
    assert send(client, task, query=query, **changes).status_code == 302
    found = data(task)
    assert len(found["lines"]) == count - 1
    assert [line["item"] for line in found["lines"][ROWS - 1 : ROWS + 2]] == [
        f"Item {ROWS - 1}", "Changed", f"Item {ROWS + 2}"
    ]  # fmt: skip
    assert found["number"] == "1"


def test_members_that_the_data_lacks_may_exceed_the_limit_of_fields() -> None:
    """B37: the rows beyond the limit have separate pages."""
    text = {"type": "string"}
    row = {"type": "object", "properties": {f"p{n}": text for n in range(20)}}
    properties = {f"h{n}": text for n in range(7)} | {"lines": {"type": "array", "items": row}}
    entered = {f"h{n}": "x" for n in range(7)} | {"lines": [{f"p{n}": "x" for n in range(10)} for _ in range(20)]}
    form = EditForm({"type": "object", "properties": properties}, entered, {})
    assert [each.is_linked for each in form.root.children[-1].children] == [False] * 15 + [True] * 5
    assert form.entered == entered


def test_new_objects_of_a_recursive_schema_are_limited() -> None:
    """B37: each level of nesting multiplies their number."""
    node = {"type": "object", "properties": {f"p{n}": {"$ref": "#/$defs/node"} for n in range(20)}}
    schema = {"$defs": {"node": node}, "$ref": "#/$defs/node"}
    assert EditForm(schema, {}, {}).field_count <= 1 + 20 + MAX_NEW_FIELDS  # 8,421 without the limit


def test_a_large_change_is_not_loaded_for_the_history(task: Task, client: Client, alice: User) -> None:
    """B37."""
    review.correct(row_of(task), lambda old: old | {"number": "x" * 30_000}, user=alice, if_match="*")
    assert "(too large to show)" in client.get(path(task, "")).content.decode()


def test_added_rows_do_not_drop_other_fields(alice: User, client: Client) -> None:
    """B37: adding rows does not change how the form is split into parts."""
    lines = ",".join(f'{{"item": "Item {n}", "quantity": {n}, "price": 1}}' for n in range(MAX_FIELDS // 3 - 5))
    task = make_invoice(alice, f'{{"number": "1", "total": 1, "lines": [{lines}], "tags": ["a", "b"]}}')
    count = len(data(task)["lines"])
    added = {f"v/lines/{count + n}/item": f"New {n}" for n in range(20)}
    sent = send(client, task, **added, **{"n/lines": str(count + 20), "v/tags/1": "changed"})
    assert sent.status_code == 302
    assert (len(data(task)["lines"]), data(task)["tags"]) == (count + 20, ["a", "changed"])


@pytest.mark.parametrize("pointer", ["/nothing", "/lines/-1", "/lines/01", "/lines/9", "/number/0", "x"])
def test_an_unknown_pointer_is_404(task: Task, client: Client, pointer: str) -> None:
    """B37: a negative index would address a different row."""
    assert client.get(f"{path(task)}?at={pointer}").status_code == 404


def test_a_text_keeps_its_line_breaks(alice: User, client: Client) -> None:
    """B37: browsers send CRLF."""
    text = "\\n first\\n second " + "word " * 20
    task = make_invoice(alice, f'{{"number": "{text}", "total": 1}}')
    before = data(task)["number"]
    assert send(client, task, **{"v/number": before.replace("\n", "\r\n"), "v/total": "2"}).status_code == 302
    assert data(task) == {"number": before, "total": 2}


# ---- Approval -------------------------------------------------------------------------------------------------------
def test_a_result_is_approved_and_the_approval_removed(task: Task, client: Client) -> None:
    """B37: lists can be filtered by approval."""
    tag = f"{row_of(task).run}-0"
    page = client.get(path(task, "")).content.decode()
    assert f'name="tag" value="&quot;{tag}&quot;"' in page
    assert f"/app/documents/{task.pk}" in client.get("/app/documents?review=waiting").content.decode()
    client.post(path(task, "/approve"), {"tag": f'"{tag}"'})
    assert "</span> by alice" in client.get(path(task, "")).content.decode()
    assert "Approved by alice" in client.get("/app/documents?review=approved").content.decode()
    assert f"/app/documents/{task.pk}" not in client.get("/app/documents?review=waiting").content.decode()
    client.post(path(task, "/unapprove"))
    assert row_of(task).approved_at is None


def test_a_result_that_changed_in_the_meantime_is_not_approved(task: Task, client: Client, alice: User) -> None:
    """B37."""
    review.correct(row_of(task), lambda old: old | {"number": "INV-71"}, user=alice, if_match="*")
    answer = client.post(path(task, "/approve"), {"tag": f'"{row_of(task).run}-0"'}, follow=True)
    assert "The result has changed since you read it" in answer.content.decode()
    assert row_of(task).approved_at is None


def test_a_correction_is_saved_and_approved_at_once(task: Task, client: Client) -> None:
    send(client, task, **{"v/number": "INV-71", "approve": "1"})
    assert (data(task)["number"], row_of(task).approved_at is not None) == ("INV-71", True)


def test_documents_without_data_can_only_be_approved(alice: User, client: Client) -> None:
    task = make_task(alice)
    complete(task)
    page = client.get(path(task, "")).content.decode()
    assert "Approve</button>" in page
    assert "Correct the data" not in page
    assert client.get(path(task)).status_code == 409
    assert client.get(path(make_task(alice))).status_code == 409


def test_others_get_404_and_staff_who_may_only_view_403(task: Task, bob: User) -> None:
    """B37."""
    stranger, viewer = Client(), Client()
    stranger.force_login(bob)
    staff = User.objects.create_user("vera", is_staff=True)
    staff.user_permissions.set(Permission.objects.filter(codename="view_task"))
    viewer.force_login(staff)
    assert stranger.get(path(task)).status_code == 404
    assert viewer.get(path(task)).status_code == 403
    assert "Correct the data" not in viewer.get(path(task, "")).content.decode()
    for part in ("/edit", "/approve", "/unapprove"):
        assert stranger.post(path(task, part), {"tag": "*"}).status_code == 404
        viewer.post(path(task, part), {"tag": "*"})
    assert not ReviewEvent.objects.exists()
