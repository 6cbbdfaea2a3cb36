"""Rules: API, versions, the default rule, and rules in files. B23, B24, B25, B26."""

import json
import re
import tracemalloc
from collections.abc import Iterator
from datetime import date
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from rest_framework.test import APIClient

from config.celery import app
from config.platform.http.problems import BadInput
from rules.admin import RuleAdmin
from rules.library import catalog, checks
from rules.loading import system_rules
from rules.models import Rule, RuleUsage, RuleVersion
from rules.pages import listing
from tests.broker import valkey
from tests.conftest import change_settings, client_of
from tests.integration.etl_factories import make_rule
from tests.integration.test_leases import in_threads

URL = "/api/v1/etl/rules"
SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}
SHIPPED = {"default", "einvoice", "invoice", "receipt", "contract-summary"}


def post(api: APIClient, **body: Any) -> Any:
    return api.post(URL, {"name": "Tickets", "json_schema": SCHEMA, **body})


def errors(response: Any) -> set[tuple[str, str]]:
    assert response.status_code == 400, response.content
    return {(error["pointer"], error["code"]) for error in response.json()["errors"]}


@pytest.fixture
def rule(api: APIClient) -> str:
    """The path of a rule that alice owns."""
    return str(post(api)["Location"])


# ---- Creating and reading -------------------------------------------------------------------------------------------


def test_it_creates_and_shows_a_rule(api: APIClient) -> None:
    """B23: llm is the default, and omitted fields are empty."""
    response = post(api)

    assert response.status_code == 201
    made = response.json()
    rule = Rule.objects.get(pk=made["rule_id"])
    assert made == {
        "rule_id": rule.pk,
        "name": "Tickets",
        "description": "",
        "json_schema": SCHEMA,
        "system_prompt": "",
        "postprocess_mode": "llm",
        "postprocess_strategy": None,
        "require_complete": False,
        "version": 1,
        "is_system": False,
        "created_at": made["created_at"],
        "updated_at": made["updated_at"],
    }
    assert made["created_at"].endswith("Z")
    assert response["Location"] == f"{URL}/{rule.pk}"
    assert api.get(response["Location"]).json() == made


def test_a_rule_may_require_complete_documents(api: APIClient) -> None:
    """B32: each version keeps its value. Strings are refused."""
    rule = post(api, require_complete=True).json()
    assert rule["require_complete"] is True
    assert api.patch(f"{URL}/{rule['rule_id']}", {"require_complete": False}).json()["version"] == 2
    versions = RuleVersion.objects.filter(rule_id=rule["rule_id"]).order_by("version")
    assert [each.require_complete for each in versions] == [True, False]
    assert post(api, require_complete="yes").json()["errors"][0]["pointer"] == "/require_complete"


def test_a_schema_is_optional_for_skip(api: APIClient) -> None:
    """B23."""
    bare = api.post(URL, {"name": "As it is", "postprocess_mode": "skip"})
    assert (bare.status_code, bare.json()["json_schema"]) == (201, None)
    assert post(api, postprocess_mode="skip").json()["json_schema"] == SCHEMA


@pytest.mark.parametrize("strategy", ["direct-json", "chunked-summarize", "chunked-extract", "vision", None, ""])
def test_it_accepts_every_strategy(api: APIClient, strategy: str | None) -> None:
    response = post(api, postprocess_strategy=strategy)
    assert (response.status_code, response.json()["postprocess_strategy"]) == (201, strategy or None)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": ""}, ("/name", "blank")),
        ({"name": "  "}, ("/name", "blank")),
        ({"name": "x" * 201}, ("/name", "max_length")),
        ({"name": 5}, ("/name", "invalid")),
        ({"name": None}, ("/name", "null")),
        ({"description": 5}, ("/description", "invalid")),
        ({"description": "x" * 32_769}, ("/description", "max_length")),
        ({"system_prompt": True}, ("/system_prompt", "invalid")),
        ({"system_prompt": "x" * 32_769}, ("/system_prompt", "max_length")),
        ({"postprocess_mode": "magic"}, ("/postprocess_mode", "invalid_choice")),
        ({"postprocess_mode": ["llm"]}, ("/postprocess_mode", "invalid_choice")),
        ({"postprocess_mode": None}, ("/postprocess_mode", "null")),
        ({"postprocess_strategy": "guess"}, ("/postprocess_strategy", "invalid_choice")),
        ({"json_schema": None}, ("/json_schema", "required")),
        ({"json_schema": "{}"}, ("/json_schema", "invalid")),
        (
            {"json_schema": {"properties": {"total": {"type": "money"}}}},
            ("/json_schema/properties/total/type", "invalid_schema"),
        ),
        (
            {"json_schema": {"properties": {"a": {"$ref": "http://127.0.0.1/x"}}}},
            ("/json_schema/properties/a/$ref", "remote_reference"),
        ),
        ({"version": 7}, ("/version", "read_only")),
        ({"rule_id": 7}, ("/rule_id", "read_only")),
        ({"is_system": True}, ("/is_system", "read_only")),
        ({"surprise": 1}, ("/surprise", "unknown_field")),
    ],
)
def test_errors_have_a_code_and_a_pointer(api: APIClient, changes: dict[str, Any], expected: tuple[str, str]) -> None:
    """B23, B24."""
    assert errors(post(api, **changes)) == {expected}
    assert not Rule.objects.exclude(owner=None).exists()


def test_it_reports_all_errors_together(api: APIClient) -> None:
    """B24."""
    body = {"json_schema": {"type": "x", "minLength": -1}, "system_prompt": 5, "odd": 1}
    assert {pointer for pointer, _ in errors(api.post(URL, body))} == {
        "/name",
        "/json_schema/type",
        "/json_schema/minLength",
        "/system_prompt",
        "/odd",
    }


@pytest.mark.slow
@pytest.mark.parametrize("levels", [100, 900, 10_000])
def test_deeply_nested_bodies_are_refused(api: APIClient, levels: int) -> None:
    """B24."""
    body = '{"name": "x", "json_schema": %s}' % ('{"not":' * levels + "{}" + "}" * levels)
    response = api.generic("POST", URL, body, content_type="application/json")
    assert errors(response) <= {("/json_schema", "too_deep"), ("", "too_deep")}


def test_lists_contain_own_and_system_rules_newest_first(api: APIClient, bob: User) -> None:
    """B23, B26."""
    mine = [post(api, name=str(number)).json()["rule_id"] for number in range(3)]
    post(client_of(bob))

    listed = api.get(URL).json()
    assert [rule["rule_id"] for rule in listed["results"][:3]] == mine[::-1]
    assert {rule["name"] for rule in listed["results"][3:] if rule["is_system"]} == {
        "Default (Markdown only)",
        "Invoice",
        "Receipt",
        "Contract summary",
        "E-invoice",
    }
    assert len(listed["results"]) == 8
    first = api.get(f"{URL}?limit=2").json()
    assert api.get(first["next"]).json()["results"][0]["rule_id"] == mine[0]
    assert api.get(f"{URL}?limit=200").json() == listed
    assert errors(api.get(f"{URL}?limit=201")) == {("/limit", "invalid")}


@pytest.mark.slow
def test_a_page_of_large_rules_is_short(api: APIClient, alice: User) -> None:
    """B24: 200 rules with schemas of maximum size would take more memory than a web container has."""
    large = [make_rule(alice, json_schema={"examples": [{} for _ in range(21_800)]}).pk for _ in range(40)]
    tracemalloc.start()
    try:
        first = api.get(f"{URL}?limit=200").json()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * 1024**2, f"{peak / 2**20:.0f} MiB"

    pages, url = [first], first["next"]
    while url:
        pages.append(api.get(url).json())
        url = pages[-1]["next"]
    listed = [rule["rule_id"] for page in pages for rule in page["results"] if rule["rule_id"] in large]
    assert listed == large[::-1]
    assert len(pages) > 1


def test_other_users_see_nothing(rule: str, bob: User) -> None:
    """B23: every method returns 404 for a rule of another user."""
    stranger = client_of(bob)
    assert [stranger.get(rule).status_code, stranger.delete(rule).status_code] == [404, 404]
    assert [stranger.put(rule, {}).status_code, stranger.patch(rule, {}).status_code] == [404, 404]
    assert APIClient().get(rule).status_code == 401


def test_staff_see_all_and_change_only_their_own(rule: str, staff: User) -> None:
    client = client_of(staff)
    assert client.get(rule).status_code == 200
    response = client.patch(rule, {"name": "Theirs"})
    assert (response.status_code, response.json()["code"]) == (403, "not_your_rule")


@pytest.mark.parametrize("number", ["0", "999999999", "9" * 30])
def test_unknown_rule_ids_are_404(api: APIClient, number: str) -> None:
    assert api.get(f"{URL}/{number}").status_code == 404


# ---- Versions -------------------------------------------------------------------------------------------------------


def test_each_change_creates_one_version(api: APIClient, rule: str) -> None:
    """B25."""
    assert api.patch(rule, {"name": "Fines"}).json()["version"] == 2
    assert api.patch(rule, {"name": "Fines", "system_prompt": "Read."}).json()["version"] == 3
    assert api.put(rule, {"name": "Fines", "postprocess_mode": "skip"}).json()["version"] == 4

    kept = RuleVersion.objects.filter(rule_id=int(rule.rpartition("/")[2])).order_by("version")
    assert [(each.version, each.name, each.system_prompt, each.postprocess_mode) for each in kept] == [
        (1, "Tickets", "", "llm"),
        (2, "Fines", "", "llm"),
        (3, "Fines", "Read.", "llm"),
        (4, "Fines", "", "skip"),
    ]
    found = catalog.content(rule_id=kept[0].rule_id, version=1)
    assert (found.name, found.mode, found.json_schema, found.strategy) == ("Tickets", "llm", SCHEMA, "")


def test_an_empty_change_creates_no_version(api: APIClient, rule: str) -> None:
    """B25: a different order of members, or 1.0 for 1, is no change."""
    assert api.patch(rule, {}).json()["version"] == 1
    assert api.patch(rule, {"name": "Tickets", "json_schema": dict(reversed(SCHEMA.items()))}).json()["version"] == 1
    assert api.put(rule, {"name": "Tickets", "json_schema": SCHEMA, "postprocess_strategy": ""}).json()["version"] == 1
    assert api.patch(rule, {"json_schema": {"minItems": 1, "const": 1}}).json()["version"] == 2
    assert api.patch(rule, {"json_schema": {"minItems": 1.0, "const": 1}}).json()["version"] == 2
    assert api.patch(rule, {"json_schema": {"minItems": 1, "const": True}}).json()["version"] == 3
    assert api.patch(rule, {"json_schema": {"maximum": 1e300}}).json()["version"] == 4
    assert api.patch(rule, {"json_schema": {"maximum": 1e300}}).json()["version"] == 4


def test_put_replaces_a_rule_and_patch_changes_fields(api: APIClient, rule: str) -> None:
    """B23."""
    api.patch(rule, {"description": "Of cars.", "postprocess_strategy": "direct-json"})
    patched = api.patch(rule, {"system_prompt": "Read."}).json()
    assert (patched["description"], patched["postprocess_strategy"]) == ("Of cars.", "direct-json")
    replaced = api.put(rule, {"name": "Tickets", "json_schema": SCHEMA}).json()
    assert (replaced["description"], replaced["postprocess_strategy"], replaced["system_prompt"]) == ("", None, "")
    assert errors(api.put(rule, {"json_schema": SCHEMA})) == {("/name", "required")}


def test_a_required_schema_cannot_be_removed(api: APIClient, rule: str) -> None:
    """B23."""
    assert errors(api.patch(rule, {"json_schema": None})) == {("/json_schema", "required")}
    assert api.patch(rule, {"json_schema": None, "postprocess_mode": "skip"}).status_code == 200
    assert errors(api.patch(rule, {"postprocess_mode": "llm"})) == {("/json_schema", "required")}
    assert api.get(rule).json()["version"] == 2


def test_concurrent_changes_are_all_kept(alice: User, api: APIClient, rule: str) -> None:
    """B25: each change creates one version."""
    clients = [client_of(alice) for _ in range(4)]

    def change(number: int) -> list[int]:
        return [clients[number].patch(rule, {"description": f"{number}/{turn}"}).json()["version"] for turn in range(5)]

    versions = [version for found in in_threads(4, change) for version in found]
    assert sorted(versions) == list(range(2, 22))
    assert api.get(rule).json()["version"] == 21
    assert RuleVersion.objects.filter(rule_id=int(rule.rpartition("/")[2])).count() == 21


def test_a_deleted_rule_remains_for_its_tasks(api: APIClient, alice: User, rule: str) -> None:
    """B25."""
    number = int(rule.rpartition("/")[2])
    assert api.delete(rule).status_code == 204
    assert [api.get(rule).status_code, api.delete(rule).status_code, api.patch(rule, {}).status_code] == [404] * 3
    assert number not in [each["rule_id"] for each in api.get(URL).json()["results"]]
    with pytest.raises(catalog.UnknownRule):
        catalog.resolve(user=alice, rule_id=number)
    assert catalog.content(rule_id=number, version=1).json_schema == SCHEMA


# ---- The default rule -----------------------------------------------------------------------------------------------


def test_every_database_has_the_default_rule(api: APIClient, alice: User) -> None:
    """B26."""
    found = catalog.resolve(user=alice, rule_id=None)
    assert (found.mode, found.version) == ("skip", 1)
    shown = api.get(f"{URL}/{found.rule_id}").json()
    assert (shown["is_system"], shown["postprocess_mode"], shown["json_schema"]) == (True, "skip", None)


def test_system_rules_are_read_only(api: APIClient, staff: User) -> None:
    """B26: also for staff, because the source of system rules is a file."""
    path = f"{URL}/{Rule.objects.get(slug='invoice').pk}"
    for client in (api, client_of(staff)):
        for response in (client.put(path, {}), client.patch(path, {"name": "Mine"}), client.delete(path)):
            assert (response.status_code, response.json()["code"]) == (403, "system_rule")


def test_the_default_rule_can_be_disabled(api: APIClient, alice: User, settings: Any) -> None:
    """B26."""
    change_settings(settings, etl_global_rule_enabled=False)
    with pytest.raises(BadInput) as refused:
        catalog.resolve(user=alice, rule_id=None)
    assert [(error.pointer, error.code) for error in refused.value.errors] == [("/rule_id", "required")]
    assert refused.value.detail == "The input is not valid."
    default = Rule.objects.get(slug="default").pk
    assert default not in [rule["rule_id"] for rule in api.get(URL).json()["results"]]
    assert api.get(f"{URL}/{default}").status_code == 404


def test_another_rule_can_be_the_default(api: APIClient, alice: User, bob: User, settings: Any, rule: str) -> None:
    """B26: all users can use the default rule, and not even its owner can change it."""
    number = int(rule.rpartition("/")[2])
    change_settings(settings, etl_global_rule_id=number)

    assert catalog.resolve(user=bob, rule_id=None).rule_id == number
    assert client_of(bob).get(rule).json()["is_system"] is True
    assert listing.rules_of(bob, "system").filter(pk=number).exists()
    assert "None.yaml" not in RuleAdmin(Rule, site).editing(Rule.objects.get(pk=number))
    assert api.patch(rule, {"name": "x"}).json()["code"] == "system_rule"
    assert api.delete(rule).status_code == 403


def test_a_missing_default_rule_is_503(alice: User, settings: Any) -> None:
    """B26."""
    assert checks.default_rule(databases=["default"]) == []
    change_settings(settings, etl_global_rule_id=999_999_999)
    with pytest.raises(catalog.NoDefaultRule) as missing:
        catalog.resolve(user=alice, rule_id=None)
    assert missing.value.status == 503
    assert [concern.id for concern in checks.default_rule(databases=["default"])] == ["rules.W001"]


# ---- Files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, settings: Any, transactional_db: None) -> Iterator[Path]:
    change_settings(settings, etl_rules_dir=tmp_path)
    yield tmp_path
    system_rules.reported_errors.clear()
    for file in tmp_path.iterdir():
        file.unlink()  # the flush after the test loads all existing rule files


def write(folder: Path, file: str, **changes: Any) -> None:
    (folder / file).write_text(json.dumps({"name": "Tickets", "json_schema": SCHEMA, **changes}))


def names(outcome: system_rules.Outcome) -> dict[str, list[str]]:
    kinds = ("created", "changed", "restored", "hidden")
    return {kind: getattr(outcome, kind) for kind in kinds if getattr(outcome, kind)}


def test_a_rule_file_becomes_a_rule_and_updates_it(folder: Path, api: APIClient) -> None:
    """B26: the file is created, unchanged, changed, deleted, and created again."""
    write(folder, "tickets.json")
    assert names(system_rules.load_all()) == {"created": ["tickets"]}
    assert names(system_rules.load_all()) == {}
    made = Rule.objects.get(slug="tickets")
    assert api.get(f"{URL}/{made.pk}").json()["is_system"] is True

    write(folder, "tickets.json", system_prompt="Read.")
    assert names(system_rules.load_all()) == {"changed": ["tickets"]}
    (folder / "tickets.json").unlink()
    assert names(system_rules.load_all()) == {"hidden": ["tickets"]}
    assert api.get(f"{URL}/{made.pk}").status_code == 404
    write(folder, "tickets.json", system_prompt="Read.")
    assert names(system_rules.load_all()) == {"restored": ["tickets"]}
    assert api.get(f"{URL}/{made.pk}").json()["version"] == 2
    assert list(made.versions.order_by("version").values_list("version", flat=True)) == [1, 2]


def test_unknown_schema_keywords_of_a_file_are_refused(folder: Path) -> None:
    """Unquoted text in YAML ends at a comma. The rest becomes an unknown keyword, which validators would ignore."""
    (folder / "bills.yaml").write_text(
        "name: Bills\nrequire_complete: true\njson_schema:\n  type: object\n  properties:\n"
        "    iban: { type: string, description: The seller's, without spaces }\n"
    )
    with pytest.raises(CommandError) as refused:
        call_command("load_rules", stdout=StringIO())
    assert "bills.yaml: /json_schema/properties/iban/without spaces: This keyword is unknown." in str(refused.value)
    (folder / "bills.yaml").write_text(
        "name: Bills\nrequire_complete: true\njson_schema:\n  type: object\n  properties:\n"
        '    iban: { type: string, description: "The seller\'s, without spaces" }\n'
    )
    call_command("load_rules", stdout=StringIO())
    assert Rule.objects.get(slug="bills").require_complete


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_numbers_in_files_keep_their_digits(folder: Path, suffix: str) -> None:
    schema = '{"properties": {"a": {"enum": [12345678901234567890.5, 0.10, -7, 123456789012345678901]}}}'
    (folder / f"long.{suffix}").write_text(f'{{"name": "Long", "json_schema": {schema}}}')
    assert system_rules.load_all().created == ["long"]
    [member] = Rule.objects.get(slug="long").json_schema["properties"].values()
    assert list(map(str, member["enum"])) == ["12345678901234567890.5", "0.10", "-7", "123456789012345678901"]


def test_yaml_is_accepted(folder: Path) -> None:
    """B26."""
    (folder / "slips.yaml").write_text("name: Slips\npostprocess_mode: skip\ndescription: |\n  Two\n  lines\n")
    (folder / "notes.yml").write_text("name: Notes\njson_schema: {type: object}\n")
    assert system_rules.load_all().created == ["notes", "slips"]
    assert Rule.objects.get(slug="slips").description == "Two\nlines\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bad.json", "{", "bad.json: (whole file)"),
        ("bad.json", "[]", "bad.json: (whole file)"),
        ("bad.json", '{"name": "x", "json_schema": {"type": "y"}}', "bad.json: /json_schema/type"),
        ("bad.json", '{"name": "x", "postprocess_mode": "skip", "colour": 1}', "bad.json: /colour"),
        ("Bad Name.json", "{}", "Bad Name.json: (whole file)"),
        ("bad.yaml", "name: [", "bad.yaml: (whole file)"),
        ("bad.yaml", "name: 2024-02-29", "bad.yaml: (whole file)"),
        ("bad.yaml", "a: &a [x]\nname: *a", "bad.yaml: (whole file)"),
        ("bad.yaml", "name: .nan", "bad.yaml: (whole file)"),
        ("bad.yaml", f"name: 0x{'f' * 300}", "bad.yaml: (whole file)"),
        ("bad.yaml", "name: !!bool maybe", "bad.yaml: (whole file)"),
        ("bad.yaml", "name: !!timestamp soon", "bad.yaml: (whole file)"),
        ("bad.yaml", "name: !!int ''", "bad.yaml: (whole file)"),
        ("bad.yaml", "[" * 5000, "bad.yaml: (whole file)"),
        ("bad.yaml", "!!python/object/apply:os.system [ls]", "bad.yaml: (whole file)"),
        ("tickets.yaml", "name: Twice", "tickets.yaml: (whole file)"),
    ],
)
def test_an_invalid_file_is_reported_and_does_not_affect_others(
    folder: Path, name: str, text: str, message: str
) -> None:
    """B26."""
    write(folder, "tickets.json")
    (folder / name).write_text(text)
    with pytest.raises(CommandError, match=f"^{re.escape(message)}"):
        call_command("load_rules", stdout=StringIO())
    assert Rule.objects.get(slug="tickets").name == "Tickets"
    assert not Rule.objects.filter(slug="bad").exists()


def test_a_file_that_becomes_invalid_keeps_its_rule(folder: Path) -> None:
    """B26."""
    write(folder, "tickets.json")
    system_rules.load_all()
    (folder / "tickets.json").write_text("{")
    assert names(system_rules.load_all()) == {}
    rule = Rule.objects.get(slug="tickets")
    assert (rule.version, rule.deleted_at) == (1, None)


def test_a_file_with_a_shipped_name_replaces_the_shipped_rule(folder: Path) -> None:
    """B26: also the default rule. When the file is deleted, the shipped rule is restored."""
    write(folder, "default.json", name="Ticket or nothing")
    assert names(system_rules.load_all()) == {"changed": ["default"]}
    assert Rule.objects.get(slug="default").postprocess_mode == "llm"
    (folder / "default.json").unlink()
    assert names(system_rules.load_all()) == {"changed": ["default"]}
    assert Rule.objects.get(slug="default").postprocess_mode == "skip"


def test_a_missing_folder_hides_no_rule(folder: Path, settings: Any) -> None:
    """B26: a host without the folder must not hide the rules of other hosts."""
    write(folder, "tickets.json")
    system_rules.load_all()
    change_settings(settings, etl_rules_dir=folder / "absent")
    assert names(system_rules.load_all()) == {}
    assert Rule.objects.get(slug="tickets").deleted_at is None


def test_the_periodic_task_loads_changes_and_hides_no_rule(folder: Path) -> None:
    """B26."""
    write(folder, "tickets.json")
    assert names(system_rules.load_changes()) == {"created": ["tickets"]}
    (folder / "tickets.json").unlink()
    write(folder, "fines.json")
    assert names(system_rules.load_changes()) == {"created": ["fines"]}
    assert Rule.objects.get(slug="tickets").deleted_at is None


def test_beat_and_workers_register_the_periodic_task(folder: Path) -> None:
    """B26."""
    app.loader.import_default_modules()
    write(folder, "tickets.json")
    app.tasks[app.conf.beat_schedule["rules.load"]["task"]]()
    assert Rule.objects.filter(slug="tickets").exists()


def test_concurrent_loads_are_safe(folder: Path) -> None:
    """B26: each rule is created once, and each change is one version."""
    for number in range(5):
        write(folder, f"rule-{number}.json")
    made = [slug for created in in_threads(4, lambda _: system_rules.load_all().created) for slug in created]
    assert sorted(made) == [f"rule-{number}" for number in range(5)]
    assert set(Rule.objects.filter(slug__startswith="rule-").values_list("version", flat=True)) == {1}


def test_a_relative_folder_is_relative_to_the_project(settings: Any) -> None:
    change_settings(settings, etl_rules_dir=Path("some/where"))
    assert system_rules.custom_folder() == Path(django_settings.BASE_DIR) / "some" / "where"


def test_the_shipped_rules_are_valid(alice: User) -> None:
    """B26: their schemas forbid additional members, and require all fields.

    B41: the schema of e-invoices requires only lists, because the sender can omit terms.
    """
    rules = {str(rule.slug): rule for rule in Rule.objects.filter(owner=None, deleted_at=None)}
    assert rules.keys() == SHIPPED
    for rule in rules.values():
        assert rule.description
        for part in objects_in(rule.json_schema):
            assert part["additionalProperties"] is False
            is_optional = rule.slug == "einvoice"
            lists = [name for name, each in part["properties"].items() if each.get("type") == "array"]
            assert sorted(part.get("required", [])) == sorted(lists if is_optional else part["properties"])


def objects_in(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for inside in schema.values():
            yield from objects_in(inside)


def test_staff_can_view_rules(client: Any, rule: str) -> None:
    client.force_login(User.objects.create_superuser("root"))
    number = rule.rpartition("/")[2]
    assert b"Tickets" in client.get("/admin/rules/rule/").content
    page = client.get(f"/admin/rules/rule/{number}/change/")
    assert page.status_code == 200
    assert client.post(f"/admin/rules/rule/{number}/change/", {"name": "x"}).status_code == 403


def test_schema_members_keep_their_order(api: APIClient) -> None:
    """B23: models fill in the fields in the order of the schema, and users see the order in which they wrote them."""
    names = ["total", "a", "currency", "supplier", "b"]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}

    rule_id = api.post("/api/v1/etl/rules", {"name": "Ordered", "json_schema": schema}).json()["rule_id"]

    shown = api.get(f"/api/v1/etl/rules/{rule_id}").json()["json_schema"]
    assert list(shown["properties"]) == names
    content = catalog.content(rule_id=rule_id, version=1)
    assert content.json_schema
    assert list(content.json_schema["properties"]) == names


# ---- Quota ----------------------------------------------------------------------------------------------------------


def versions() -> int:
    return RuleVersion.objects.filter(rule__owner__isnull=False).count()


def test_each_version_of_a_day_counts(api: APIClient, bob: User, rule: str, settings: Any) -> None:
    """B23: otherwise, changes could fill the database with 338 MB a minute."""
    change_settings(settings, etl_daily_rule_versions=3)
    statuses = [api.patch(rule, {"name": f"n{number}"}).status_code for number in range(3)]
    refused = post(api)

    assert statuses == [200, 200, 429]
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert "your daily limit of 3 rule versions" in refused.json()["detail"]
    assert 0 < int(refused["Retry-After"]) <= 86_400
    assert versions() == 3
    assert api.patch(rule, {"name": "n1"}).status_code == 200  # no change, no version
    assert api.get(rule).json()["version"] == 3
    assert post(client_of(bob)).status_code == 201
    limit = api.get("/api/v1/etl/limits").json()["rule_versions_per_day"]
    assert limit.pop("resets_at").endswith("00:00:00Z")
    assert limit == {"limit": 3, "used": 3, "remaining": 0}


def test_a_new_day_starts_with_all_rule_versions(api: APIClient, rule: str, settings: Any) -> None:
    change_settings(settings, etl_daily_rule_versions=1)
    assert post(api).status_code == 429
    RuleUsage.objects.update(day=date(2026, 1, 1))
    assert [post(api).status_code for _ in range(2)] == [201, 429]
    change_settings(settings, etl_daily_rule_versions=0)
    RuleUsage.objects.all().delete()
    assert post(api).status_code == 429


def test_concurrent_changes_cannot_overspend(alice: User, rule: str, settings: Any) -> None:
    change_settings(settings, etl_daily_rule_versions=4)
    clients = [client_of(alice) for _ in range(8)]
    answers = in_threads(8, lambda n: post(clients[n]) if n % 2 else clients[n].patch(rule, {"name": f"n{n}"}))
    assert sorted(answer.status_code // 100 for answer in answers) == [2] * 3 + [4] * 5
    assert versions() == 4


def test_changes_have_the_rate_of_posts(api: APIClient, rule: str, settings: Any) -> None:
    """B23: not the rate of polls, which is five times as high."""
    change_settings(settings, etl_rate="3/min")
    valkey().flushdb()
    for expected in ([200, 400, 204], [429] * 3):
        changes = [api.patch(rule, {}), api.put(rule, {}), api.delete(rule)]
        assert [change.status_code for change in changes] == expected
    assert api.get(URL).status_code == 200
