"""Documents and rules on the command line. C3."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from config.platform import exact_json, storage
from config.platform.db import clock
from etl import runstate
from etl.models import Evaluation, Task
from rules.models import Rule
from tests.broker import valkey
from tests.client.conftest import Cli
from tests.client.fault_proxy import FaultProxy, problem
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.etl_progress import MARKDOWN, RESULT, begin, complete, fail, read
from tests.integration.faulty_s3 import lose_reply
from tests.integration.reviewed import make_invoice
from tests.waiting import wait_until


@pytest.fixture
def document(sluice: Cli) -> Path:
    path = sluice.folder / "note.txt"
    path.write_text("Hello.")
    return path


# ---- Submit ---------------------------------------------------------------------------------------------------------


def test_a_small_file_is_uploaded_through_the_service(
    alice: User, sluice: Cli, document: Path, api_proxy: FaultProxy, storage_proxy: FaultProxy
) -> None:
    task = Task.objects.get(pk=sluice("document", "submit", document).word)
    assert (task.filename, task.size, task.user_id) == ("note.txt", 6, alice.pk)
    assert storage_proxy.seen == []


@pytest.mark.slow
def test_a_large_file_is_uploaded_directly_to_object_storage(
    alice: User, sluice: Cli, document: Path, api_proxy: FaultProxy, storage_proxy: FaultProxy
) -> None:
    """C3: the token is not sent to object storage."""
    document.write_text("Hello. " * 1_200_000)
    output = sluice("document", "submit", document, "--json").json
    assert Task.objects.get(pk=output["task_id"]).size == 8_400_000
    (put,) = storage_proxy.requests_to("PUT", "")
    assert "authorization" not in put.headers
    small = sluice.folder / "small.txt"
    small.write_text("Hello.")
    sluice("document", "submit", small, "--direct")
    assert len(storage_proxy.requests_to("PUT", "")) == 2


def test_a_rejected_upload_is_reported(alice: User, sluice: Cli, document: Path, storage_proxy: FaultProxy) -> None:
    storage_proxy.inject("PUT", "", problem(403, "AccessDenied"))
    assert "--through" in sluice("document", "submit", document, "--direct", code=10).err
    assert not Task.objects.exists()


def test_a_lost_response_creates_no_second_task(
    alice: User, sluice: Cli, document: Path, api_proxy: FaultProxy
) -> None:
    """C3."""
    api_proxy.inject("POST", "/submit", lose_reply)
    ran = sluice("document", "submit", document)
    assert str(Task.objects.get().pk) == ran.word
    assert len(api_proxy.requests_to("POST", "/submit")) == 2


def test_a_refusal_names_the_file(alice: User, sluice: Cli, document: Path) -> None:
    document.write_bytes(b"\x00\x01\x02")
    ran = sluice("document", "submit", document, code=5)
    assert "unsupported_format" in ran.err
    assert f"File: {document}" in ran.err
    document.write_bytes(b"")
    assert f"{document}: The document is empty (0 bytes)." in sluice("document", "submit", document, code=5).err
    document.write_text("Hello.")
    assert "--rule" in sluice("document", "submit", document, "--rule", "999999", code=5).err
    sluice("document", "submit", document, document, "--idempotency-key", "x", code=2)
    sluice("document", "submit", "none.pdf", code=2)
    assert not Task.objects.exists()


def test_a_rule_is_selected_by_name_or_id(alice: User, sluice: Cli, document: Path) -> None:
    rule = make_rule(alice, name="Totals")
    for name in ("totals", str(rule.pk)):
        task = Task.objects.get(pk=sluice("document", "submit", document, "--rule", name).word)
        assert task.rule_id == rule.pk
    make_rule(alice, name="TOTALS")
    assert str(rule.pk) in sluice("document", "submit", document, "--rule", "totals", code=2).err
    assert "sluice rule list" in sluice("document", "submit", document, "--rule", "other", code=4).err


# ---- Wait -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_waits_for_all_tasks_and_reports_each(alice: User, sluice: Cli, api_proxy: FaultProxy) -> None:
    """C3."""
    tasks = [make_task(alice) for _ in range(3)]
    waiting = sluice.start("document", "wait", *(task.pk for task in tasks))
    wait_until(api_proxy.streams)
    complete(tasks[0])
    fail(tasks[1])
    complete(tasks[2])
    out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, out) == (7, b"")
    assert "hello.txt failed at ocr: The file is encrypted." in err.decode()
    assert err.decode().count("Completed: hello.txt") == 2


def test_json_output_includes_failed_tasks(alice: User, sluice: Cli) -> None:
    task = make_task(alice)
    fail(task)
    output = sluice("document", "wait", task.pk, "--json", code=7).json
    assert (output["status"], output["error"]["code"]) == ("failed", "file_encrypted")


@pytest.mark.slow
def test_ctrl_c_stops_waiting_only(alice: User, sluice: Cli, api_proxy: FaultProxy) -> None:
    """C3."""
    task = make_task(alice)
    waiting = sluice.start("document", "wait", task.pk)
    wait_until(api_proxy.streams)
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    assert err.decode().endswith(f"sluice document wait {task.pk}\n")
    assert "--timeout" not in err.decode()
    sluice("document", "wait", task.pk, "--timeout", "1", code=9)


# ---- View and change -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_documents_are_listed(alice: User, bob: User, sluice: Cli) -> None:
    task, others = make_task(alice), make_task(bob)
    complete(task)
    assert [line.split()[:3] for line in sluice("document", "list").text.splitlines()[1:]] == [
        [str(task.pk), "hello.txt", "completed"]
    ]
    assert sluice("document", "list", "--status", "failed", "--json").out == b""
    assert sluice("document", "list", "--name", "ELLO", "--from", "2024-01-01", "--json").json["task_id"] == task.pk
    assert sluice("document", "list", "--name", "other", "--json").out == b""
    assert "--from: " in sluice("document", "list", "--from", "soon", code=5).err
    assert "completed" in sluice("document", "show", task.pk).text
    assert sluice("document", "show", task.pk, "--json").json["status"] == "completed"
    for verb in ("show", "wait", "result", "cancel"):
        assert sluice("document", verb, others.pk, code=4).err == "Error: Task not found [not_found]\n"


def test_the_e_invoice_of_a_document_is_shown(alice: User, sluice: Cli) -> None:
    """C3, B41."""
    task = make_task(alice)
    assert "E-invoice" not in sluice("document", "show", task.pk).text
    for errors, shown in ((), "valid"), (({"code": "BR-CO-10", "detail": "…"},), "errors: BR-CO-10"):
        found = {"syntax": "ubl", "profile": "XRECHNUNG 3.0", "valid": not errors, "errors": list(errors)}
        Task.objects.filter(pk=task.pk).update(metadata={"ocr": {"einvoice": found}})
        valkey().delete(runstate.key_of(task.pk))
        assert f"E-invoice  UBL XRECHNUNG 3.0, {shown}\n" in sluice("document", "show", task.pk).text


@pytest.mark.slow
def test_a_result_is_printed_as_text_or_data(alice: User, sluice: Cli) -> None:
    task = make_task(alice)
    assert "not_ready" in sluice("document", "result", task.pk, "--markdown", code=5).err
    assert "sluice document wait" in sluice("document", "result", task.pk, code=5).err
    complete(task, {**RESULT, "data": {"total": "12.00 €"}})
    assert sluice("document", "result", task.pk, "--markdown").text == MARKDOWN
    assert sluice("document", "result", task.pk, "--data").text == '{"total": "12.00 €"}\n'
    assert sluice("document", "result", task.pk).json["data"] == {"total": "12.00 €"}
    plain = make_task(alice)
    complete(plain)
    assert "--markdown" in sluice("document", "result", plain.pk, "--data", code=4).err


def test_numbers_are_printed_digit_for_digit_and_in_order(alice: User, sluice: Cli) -> None:
    """B43: they are not converted to doubles, such as 90071992547409.94 and 1e+22."""
    text = (
        '{"zebra": [90071992547409.93, 1e22, 12.50, -0, 12345678901234567890, 1e-400], "apple": {"a": 0.10, "b": []}}'
    )
    task = make_task(alice)
    complete(task, {**RESULT, "data": exact_json.loads(text)})
    assert sluice("document", "result", task.pk, "--data").text == f"{text}\n"
    assert f'"data": {text}' in sluice("document", "result", task.pk).text


def test_a_concurrent_change_of_a_result_is_a_refusal() -> None:
    """C3: not an unexpected error."""
    from sluice.cli.errors import Exit, cli_error_of
    from sluice.errors import Problem

    assert cli_error_of(Problem({"code": "precondition_failed"}, status=412)).code is Exit.REFUSED


@pytest.mark.slow
def test_a_result_is_corrected_and_approved(alice: User, sluice: Cli) -> None:
    """B37: numbers keep the digits of the file, and the history shows the change."""
    task = make_invoice(alice)
    patch = sluice.folder / "patch.json"
    patch.write_text('{"total": 12.340, "kind": null}')
    assert '"total": 12.340' in sluice("document", "correct", task.pk, patch).text
    assert '"total": 12.340' in sluice("document", "result", task.pk, "--data").text
    assert '"total": 90071992547409.930' in sluice("document", "result", task.pk, "--data", "--original").text
    assert "Approved by alice." in sluice("document", "approve", task.pk).err
    assert str(task.pk) in sluice("document", "list", "--approved", "--corrected").text
    assert str(task.pk) not in sluice("document", "list", "--not-approved").text
    shown = sluice("document", "history", task.pk).text
    assert "approved" in shown
    assert "12.340" in shown
    assert "Approval removed." in sluice("document", "approve", task.pk, "--remove").err
    patch.write_text('{"total": "much"}')
    assert "/data/total" in sluice("document", "correct", task.pk, patch, code=5).err
    patch.write_text("{")
    assert "is not JSON" in sluice("document", "correct", task.pk, patch, code=2).err


def test_a_document_is_deleted(alice: User, sluice: Cli) -> None:
    """B34."""
    task = make_task(alice)
    assert "Deleted." in sluice("document", "delete", task.pk).err
    assert sluice("document", "delete", task.pk, code=4).err == "Error: Task not found [not_found]\n"


def test_a_running_document_is_cancelled_only_with_force(alice: User, sluice: Cli) -> None:
    """B33."""
    task = make_task(alice)
    begin(task)
    assert "not_cancellable" in sluice("document", "cancel", task.pk, code=5).err
    assert sluice("document", "cancel", task.pk, "--force", "--json").json["status"] == "cancelled"


def test_a_queued_document_is_cancelled(alice: User, sluice: Cli) -> None:
    task = make_task(alice)
    assert sluice("document", "cancel", task.pk, "--json").json["status"] == "cancelled"
    assert "not_cancellable" in sluice("document", "cancel", task.pk, code=5).err
    assert "cancelled" in sluice("document", "result", task.pk, code=8).err


@pytest.mark.slow
def test_another_rule_reprocesses_the_same_text(alice: User, sluice: Cli) -> None:
    task, rule = make_task(alice), make_rule(alice, name="Totals")
    read(task)
    assert "not_ended" in sluice("document", "retry", task.pk, "--from", "postprocess", code=5).err
    task = make_task(alice)
    complete(task)
    sluice("document", "retry", task.pk, "--from", "postprocess", "--rule", "totals")
    task.refresh_from_db()
    assert (task.status, task.phase, task.rule_id) == ("pending", "postprocess", rule.pk)
    assert "--from: " in sluice("document", "retry", task.pk, "--from", "x", code=5).err


# ---- Rules ----------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"total": {"type": "string"}}}


@pytest.fixture
def totals(sluice: Cli) -> dict[str, Any]:
    """A rule file, `rule.json`, and its contents."""
    rule = {"name": "Totals", "system_prompt": "You read invoices.", "json_schema": SCHEMA}
    (sluice.folder / "rule.json").write_text(json.dumps(rule))
    return rule


@pytest.mark.slow
def test_a_rule_is_created_changed_and_deleted(alice: User, sluice: Cli, totals: dict[str, Any]) -> None:
    """C3: the output of `show` can be edited and sent back."""
    number = sluice("rule", "create", "rule.json").word
    shown = sluice("rule", "show", "totals", "--json").json
    assert {name: shown[name] for name in totals} == totals
    shown["description"] = "Of invoices."
    assert sluice("rule", "update", number, "-", "--json", stdin=json.dumps(shown)).json["version"] == 2
    assert Rule.objects.get(pk=number).system_prompt == totals["system_prompt"]
    sluice("rule", "update", number, "rule.json", "--replace")
    assert Rule.objects.get(pk=number).description == ""
    assert f"{number} " in sluice("rule", "list").text
    sluice("rule", "delete", "Totals", "--yes")
    assert "sluice rule list" in sluice("rule", "show", "Totals", code=4).err


def test_numbers_of_a_rule_are_sent_and_printed_digit_for_digit(alice: User, sluice: Cli) -> None:
    schema = '{"properties": {"a": {"minimum": 12345678901234567890.5, "enum": [0.10, 1E+22]}}}'
    number = sluice("rule", "create", "-", stdin=f'{{"name": "Long", "json_schema": {schema}}}').word
    shown = sluice("rule", "show", number, "--json").text
    assert f'"json_schema": {schema}' in shown
    assert sluice("rule", "update", number, "-", "--json", stdin=shown).json["version"] == 1


@pytest.mark.parametrize("indent", [None, 2])
def test_json_has_the_usual_layout(indent: int | None) -> None:
    from sluice import exact_json as client_json

    value = {"a": [1, 2.5, None, True, "é\n"], "b": {}, "c": [], "d": {"e": [{"f": ""}]}}
    assert client_json.dumps(client_json.loads(json.dumps(value)), indent=indent) == json.dumps(
        value, indent=indent, ensure_ascii=False
    )


def test_errors_in_a_rule_are_reported_by_location(alice: User, sluice: Cli, totals: dict[str, Any]) -> None:
    totals["json_schema"] = {"type": "object", "properties": {"total": {"type": "money"}}}
    (sluice.folder / "rule.json").write_text(json.dumps(totals))
    assert "rule.json at /json_schema/properties/total/type: " in sluice("rule", "create", "rule.json", code=5).err
    for nonsense in ("[1]", "{", "\0"):
        sluice("rule", "create", "-", stdin=nonsense, code=2)
    sluice("rule", "create", "none.json", code=2)


def test_system_rules_cannot_be_changed(transactional_db: None, sluice: Cli, totals: dict[str, Any]) -> None:
    (system, *_) = [each for each in sluice("rule", "list", "--json").lines if each["is_system"]]
    assert "system_rule" in sluice("rule", "update", system["rule_id"], "rule.json", code=3).err


def test_a_rule_can_be_tried_on_a_text(alice: User, sluice: Cli, document: Path, totals: dict[str, Any]) -> None:
    make_rule(alice, name="Plain")
    assert sluice("rule", "test", "plain", "note.txt").json["metadata"]["pages"] == 1
    sluice("rule", "create", "rule.json")
    output = sluice("rule", "test", "totals", "-", "--json", stdin="Total: 12", code=7)
    assert output.json["error"]["code"] == "llm_unavailable"


# ---- Batches --------------------------------------------------------------------------------------------------------


def test_a_batch_is_submitted_watched_retried_and_downloaded(alice: User, sluice: Cli, document: Path) -> None:
    """C3, B36."""
    other = sluice.folder / "other.rtf"
    other.write_bytes(rb"{\rtf1\ansi A letter.}")
    second = sluice.folder / "second.txt"
    second.write_text("Hello again.")
    ran = sluice("document", "batch", "submit", document, second, other, "--name", "March")
    batch = ran.word
    assert "Not accepted: other.rtf [unsupported_format]" in ran.err
    tasks = list(Task.objects.filter(batch_id=int(batch)).order_by("pk"))
    complete(tasks[0])
    fail(tasks[1])
    ran = sluice("document", "batch", "wait", batch, code=7)
    assert f"sluice document batch retry {batch} --wait" in ran.err
    assert "1 of 2 completed · 1 failed" in sluice("document", "batch", "show", batch).out.decode()
    assert b"completed_with_errors" in sluice("document", "batch", "list").out
    assert "second.txt" in sluice("document", "list", "--batch", batch, "--status", "failed").out.decode()
    sluice("document", "batch", "retry", batch)
    assert "cancelled" in sluice("document", "batch", "cancel", batch).err
    assert "nothing_to_retry" in sluice("document", "batch", "retry", batch, code=5).err
    target = sluice.folder / "results.csv"
    sluice("document", "batch", "results", batch, "--output", target)
    lines = target.read_text().splitlines()
    assert lines[0] == "task_id,filename,status,error"
    assert lines[1:] == [f"{tasks[0].pk},note.txt,completed,", f"{tasks[1].pk},second.txt,cancelled,"]
    assert not list(sluice.folder.glob("*.part"))
    assert "--rows" in sluice("document", "batch", "results", batch, "--rows", "x", code=5).err


def test_a_batch_of_inbox_files_is_submitted(alice: User, sluice: Cli, document: Path) -> None:
    """C3, B36."""
    storage.put(f"etl/inbox/{alice.pk}/march/1.txt", b"One.", content_type="text/plain")
    batch = sluice("document", "batch", "submit", "--prefix", "march/", "--name", "March").word
    task = Task.objects.get()
    assert (str(task.batch_id), task.batch and task.batch.name, task.filename) == (batch, "March", "1.txt")
    assert "--prefix: No path below" in sluice("document", "batch", "submit", "--prefix", "none/", code=5).err
    for files in ((), (document, "--prefix", "")):
        assert "either files or --prefix" in sluice("document", "batch", "submit", *files, code=2).err


@pytest.mark.slow
def test_a_batch_is_uploaded_directly_to_object_storage(
    alice: User, sluice: Cli, document: Path, api_proxy: FaultProxy, storage_proxy: FaultProxy
) -> None:
    """C3, B36: a lost response does not create a second batch."""
    api_proxy.inject("POST", "/batches", lose_reply)
    batch = sluice("document", "batch", "submit", document, "--direct").word
    assert [str(task.batch_id) for task in Task.objects.all()] == [batch]
    assert len(storage_proxy.requests_to("PUT", "")) == 1
    assert len(api_proxy.requests_to("POST", "/batches")) == 2


@pytest.mark.slow
def test_an_evaluation_is_awaited_by_the_command_that_the_error_names(alice: User, sluice: Cli) -> None:
    """C3."""
    rule = make_rule(alice, name="invoices")
    row = Evaluation.objects.create(rule=rule, number=1, version=1, user=alice, samples=1)
    command = ("rule", "evaluation", "invoices", 1, "--wait")
    ran = sluice(*command, "--timeout", "0.5", code=9)
    assert ran.err.endswith("Resume waiting with: sluice rule evaluation invoices 1 --wait\n")
    Evaluation.objects.filter(pk=row.pk).update(status="completed", accuracy=0.975, ended_at=clock.now())
    assert b"97.5 %" in sluice(*command).out
