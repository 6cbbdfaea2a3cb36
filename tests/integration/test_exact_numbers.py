"""Exact numbers: every representation of a result has the model's digits and the order of its fields. B43."""

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from rest_framework.test import APIClient

from config.platform import exact_json, storage
from config.platform.exact_json import Number
from etl.api import event_stream, lookup
from etl.core.states import Stage
from etl.models import Task
from etl.pipeline import actions
from etl.postprocessors import responses
from etl.postprocessors.schemas import with_floats
from rules.models import Rule
from tests.broker import valkey
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.openai_server import ModelServer, data_reply, text_reply
from tests.integration.stage_runs import row_of, run

NUMBERS = (
    *("90071992547409.93", "0.1234567890123456789", "1e-400", "1e22", "1E+22", "-0.0", "-0", "12.50", "0.10"),
    *("12345678901234567890", "-9223372036854775809", "1e308", "0.30000000000000004", "7", "9007199254740993"),
)
SCHEMA = {
    "type": "object",
    "properties": {"zebra": {"type": "array", "items": {"type": "number"}}, "apple": {"type": "string"}},
    "required": ["zebra", "apple"],
}
# jsonb would change the order of these fields.
DATA = f'{{"zebra":[{",".join(NUMBERS)}],"apple":"x"}}'
TEXT = "An invoice with numbers."


@pytest.fixture
def models(model_server: ModelServer) -> ModelServer:
    model_server.set_default(text_reply(f'{{"data": {DATA}}}'))
    return model_server


@pytest.fixture
def task(alice: User, models: ModelServer) -> Task:
    new = make_task(alice, TEXT, rule=make_rule(alice, mode="llm", json_schema=SCHEMA))
    run(new)
    assert row_of(new).status == "completed", row_of(new).error
    return new


def compact(text: str) -> str:
    """Return JSON without white space. The strings in these tests contain none."""
    return "".join(text.split())


def test_the_artifact_has_every_digit(task: Task) -> None:
    key = row_of(task).last_result["output_s3_key"]
    assert DATA in b"".join(storage.read(key)).decode()


def test_the_row_has_every_digit_and_the_order(task: Task) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_result::text FROM etl_task WHERE task_id = %s", [task.pk])
        assert DATA in cursor.fetchone()[0]


def test_the_api_has_every_digit_with_and_without_a_run_state(task: Task, api: APIClient) -> None:
    """B43."""
    at_once = api.get(f"/api/v1/etl/tasks/{task.pk}").content.decode()
    valkey().flushall()  # as if the run-state has expired
    later = api.get(f"/api/v1/etl/tasks/{task.pk}").content.decode()

    assert DATA in at_once
    assert DATA in later
    result = '"result":'
    assert (
        at_once.partition(result)[2].partition('"previous_result"')[0]
        == later.partition(result)[2].partition('"previous_result"')[0]
    )


def test_the_event_stream_has_every_digit(task: Task) -> None:
    start = event_stream.begin(lookup.states_of([task.pk])[task.pk], "")
    assert start
    assert DATA in start.opening.decode()


def test_pages_and_downloads_have_every_digit(task: Task, alice: User, client: Client) -> None:
    client.force_login(alice)
    tree = client.get(f"/app/documents/{task.pk}").content.decode()
    text = client.get(f"/app/documents/{task.pk}?json=raw").content.decode()
    download = client.get(f"/app/documents/{task.pk}/json").content.decode()

    assert all(f'<bdi class="value number">{number}</bdi>' in tree for number in NUMBERS)
    assert compact(download) == DATA
    assert compact(DATA.replace('"', "&quot;")) in compact(text)


def test_a_test_of_a_rule_has_every_digit(models: ModelServer, alice: User, api: APIClient) -> None:
    rule = make_rule(alice, mode="llm", json_schema=SCHEMA)
    response = api.post(f"/api/v1/etl/rules/{rule.pk}/test", {"markdown": TEXT})
    assert DATA in response.content.decode()


def test_a_result_of_an_earlier_release_is_shown(task: Task, api: APIClient) -> None:
    """An earlier release writes only the column `result`, even when it retries a task that this release completed."""
    Task.objects.filter(pk=task.pk).update(run=2, generation=2, result={"data": {"old": 1}})
    valkey().flushall()

    assert api.get(f"/api/v1/etl/tasks/{task.pk}").json()["result"] == {"data": {"old": 1}}


def test_an_earlier_release_can_read_the_result(task: Task) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT result::text FROM etl_task WHERE task_id = %s", [task.pk])
        data = json.loads(cursor.fetchone()[0])["data"]
    assert [float(each) for each in data["zebra"]] == [float(number) for number in NUMBERS]


def test_a_retry_from_stored_responses_has_every_digit(task: Task, api: APIClient) -> None:
    actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS)
    run(task, Stage.POSTPROCESS)
    assert DATA in api.get(f"/api/v1/etl/tasks/{task.pk}").content.decode()


# ---- Validation -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("schema", "fitting", "other"),
    [
        ({"multipleOf": 0.01}, "90071992547409.93", "90071992547409.935"),
        ({"exclusiveMinimum": 0}, "1e-400", "-0.0"),
        ({"minimum": 90071992547409.5}, "90071992547409.5", "90071992547409.499"),
        ({"maximum": 0.1}, "0.1", "0.1000000000000000000001"),
        ({"type": "integer"}, "1e22", "0.1234567890123456789"),
        ({"enum": [0.1]}, "0.10", "0.1000000000000000055511151231257827"),
    ],
)
def test_schemas_apply_to_the_exact_number(
    models: ModelServer, alice: User, schema: dict[str, Any], fitting: str, other: str
) -> None:
    rule = make_rule(alice, mode="llm", json_schema={"properties": {"total": {"type": "number"} | schema}})
    models.enqueue(
        *[text_reply(f'{{"data": {{"total": {other}}}}}')] * 2, text_reply(f'{{"data": {{"total": {fitting}}}}}')
    )
    task = make_task(alice, TEXT, rule=rule)

    run(task)

    assert len(models.requests) == 3
    assert str(row_of(task).last_result["data"]["total"]) == fitting


LONG = "12345678901234567890.5"


@pytest.mark.parametrize(
    ("keyword", "value", "total"),
    [
        ("minimum", LONG, (LONG, "12345678901234567890.4")),
        ("const", LONG, (LONG, "12345678901234567890.4")),
        ("enum", f"[{LONG}]", (LONG, "12345678901234567890.6")),
        ("const", LONG.replace(".", "0"), (LONG.replace(".", "0"), LONG.replace(".", "1"))),
        ("multipleOf", "0.00000000000000000003", ("0.00000000000000000006", "0.00000000000000000007")),
    ],
)
def test_numbers_of_schemas_have_every_digit(
    api: APIClient, models: ModelServer, keyword: str, value: str, total: tuple[str, str]
) -> None:
    """As doubles, 12345678901234567890.4 and 12345678901234567890.5 would be equal."""
    schema = f'{{"properties": {{"total": {{"type": "number", "{keyword}": {value}}}}}}}'
    body = f'{{"name": "Long", "json_schema": {schema}}}'
    created = api.post("/api/v1/etl/rules", body, content_type="application/json")
    assert value in created.content.decode()
    assert value in api.get(created["Location"]).content.decode()
    fitting, other = total
    models.enqueue(text_reply(f'{{"data": {{"total": {other}}}}}'), text_reply(f'{{"data": {{"total": {fitting}}}}}'))
    rule = Rule.objects.get(pk=created.json()["rule_id"])
    task = make_task(User.objects.get(pk=rule.owner_id or 0), TEXT, rule=rule)

    run(task)

    assert len(models.requests) == 2
    assert value in models.requests[0].message("system")
    if keyword != "multipleOf":  # its error messages contain a double
        assert value.strip("[]") in models.requests[1].messages[3]["content"]
    assert str(row_of(task).last_result["data"]["total"]) == fitting


def test_a_change_in_the_last_digit_is_a_new_version(api: APIClient) -> None:
    body = f'{{"name": "Long", "json_schema": {{"properties": {{"a": {{"minimum": {LONG}}}}}}}}}'
    path = api.post("/api/v1/etl/rules", body, content_type="application/json")["Location"]
    for text, version in ((body, 1), (body.replace("890.5", "890.50"), 1), (body.replace("890.5", "890.6"), 2)):
        assert api.put(path, text, content_type="application/json").json()["version"] == version


def test_the_page_of_a_rule_has_every_digit(api: APIClient, alice: User, client: Client) -> None:
    body = f'{{"name": "Long", "json_schema": {{"properties": {{"a": {{"enum": [{LONG}, 0.10]}}}}}}}}'
    rule_id = api.post("/api/v1/etl/rules", body, content_type="application/json").json()["rule_id"]
    client.force_login(alice)
    assert f"[{LONG}, 0.10]" in client.get(f"/app/rules/{rule_id}").content.decode()


@pytest.mark.parametrize("number", ["1" * 101, "1e-501"])
def test_numbers_that_take_long_to_compare_are_refused(api: APIClient, number: str) -> None:
    body = f'{{"name": "Long", "json_schema": {{"properties": {{"a": {{"minimum": {number}}}}}}}}}'
    refused = api.post("/api/v1/etl/rules", body, content_type="application/json").json()
    assert refused["errors"][0]["pointer"] == "/json_schema/properties/a/minimum"


def test_a_server_that_enforces_schemas_gets_no_rounded_number() -> None:
    schema = exact_json.loads(
        f'{{"properties": {{"a": {{"const": {LONG}}}, "b": {{"minimum": 0.50, "enum": [1, 2.5]}}}}}}'
    )
    assert with_floats(schema) == {"properties": {"a": {}, "b": {"minimum": 0.5, "enum": [1, 2.5]}}}


# ---- Numbers that cannot be stored ----------------------------------------------------------------------------------
TOO_LONG = "1." + "3" * 120
REASONS = {
    TOO_LONG: "The number has more than 100 digits.",
    "1e309": "The number is larger than 1.8e308, which other programs read as infinity.",
    "1e-501": "The number has more than 500 decimal places.",
    "1e-99999999999999999999": "The exponent of the number has more than 4 digits.",
    "9" * 5_000: "The number has more than 100 digits.",
}


@pytest.mark.parametrize(("number", "reason"), REASONS.items(), ids=lambda text: text[:12])
def test_an_unrepresentable_number_is_requested_as_a_string(
    models: ModelServer, alice: User, number: str, reason: str
) -> None:
    """B43."""
    models.enqueue(text_reply(f'{{"data": {{"total": {number}}}}}'))
    models.set_default(data_reply({"total": number}))
    rule = make_rule(alice, mode="llm", json_schema={"properties": {"total": {"type": ["number", "string"]}}})
    task = make_task(alice, TEXT, rule=rule)

    run(task)

    row = row_of(task)
    assert f"- /total: {reason} Write it as a string, with all its digits." in models.requests[1].messages[3]["content"]
    assert row.last_result["data"] == {"total": number}
    [warning] = [each for each in row.metadata["warnings"] if each["code"] == "number_unrepresentable"]
    assert reason in warning["detail"]


@pytest.mark.parametrize("literal", ["0e501", "0.0e900"])
def test_zero_has_no_size_limit(literal: str) -> None:
    assert responses.number(literal) == Number(literal)


def test_the_reason_is_reported_if_the_schema_allows_no_string(models: ModelServer, alice: User) -> None:
    models.enqueue(text_reply(f'{{"data": {{"total": {TOO_LONG}}}}}'))
    models.set_default(data_reply({"total": TOO_LONG}))
    rule = make_rule(alice, mode="llm", json_schema={"properties": {"total": {"type": "number"}}})
    task = make_task(alice, TEXT, rule=rule)

    run(task)

    error = row_of(task).error or {}
    assert error["code"] == "number_unrepresentable"
    assert error["detail"] == (
        "/total: The number has more than 100 digits. Allow a string there in the rule's schema."
    )
