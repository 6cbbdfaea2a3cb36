"""IDs that a restored database issues again, while Redis and the bucket still have data of lost documents."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from config.platform import storage
from etl import runstate
from etl.api import lookup
from etl.core.states import Stage, Status
from etl.maintenance import after_restore, recovery
from etl.models import Task
from etl.models.task import new_uuid
from etl.pipeline import artifacts, completion
from exports.core import planning
from exports.delivery import bundles
from exports.models import Dataset, Job, Receipt
from exports.worker import completion as exports_completion
from exports.worker import execution
from tests.broker import valkey
from tests.integration.etl_factories import make_row, make_rule, make_task
from tests.integration.factories import make_job
from tests.integration.stage_runs import age, run

LOST, OWN = "A secret of a lost document.", "Its own text."

pytestmark = pytest.mark.usefixtures("configure_stages")


def numbered() -> dict[str, Any]:
    """Return a UUID with the run numbers that are derived from it, as columns of a row."""
    task = Task(uuid=new_uuid())
    return {"uuid": task.uuid} | dict.fromkeys(("generation", "run", "ocr_run", "journal_run"), task.first_run)


def lose(task: Task) -> Task:
    """Delete the row, like a restore, and create a row of a new document with the same ID and generation."""
    Task.objects.filter(pk=task.pk).delete()
    columns = numbered() | {"generation": task.generation}
    return make_row(task.user, OWN, rule=task.rule, task_id=task.pk, **columns)


def text_of(task: Task) -> str:
    result = Task.objects.get(pk=task.pk).result
    assert result
    return b"".join(storage.read(result["markdown_s3_key"])).decode().partition("\n")[2].strip()


def test_the_text_of_a_lost_document_is_not_adopted(alice: User) -> None:
    lost = make_task(alice, LOST, **numbered())
    run(lost)
    again = lose(lost)
    valkey().delete(runstate.key_of(again.pk))
    runstate.create(again, stage=Stage.OCR)

    run(again)

    assert text_of(again) == OWN


@pytest.mark.parametrize("stages", [[], [Stage.OCR], list(Stage)], ids=["waiting", "recognized", "ended"])
def test_the_run_state_of_a_lost_document_is_replaced(alice: User, stages: list[Stage]) -> None:
    lost = make_task(alice, LOST, **numbered())
    for stage in stages:
        run(lost, stage)
    again = lose(lost)

    assert runstate.create(again, stage=Stage.OCR).moved

    state = runstate.read(again.pk)
    assert state
    assert (state.document_key, state.status) == (again.document_key, "pending")
    run(again)
    assert text_of(again) == OWN


@pytest.mark.parametrize("stages", [[], [Stage.OCR], list(Stage)], ids=["waiting", "recognized", "ended"])
def test_recovery_recreates_it_after_a_submission_without_redis(alice: User, stages: list[Stage]) -> None:
    """Before the recovery, no worker starts the lost document."""
    lost = make_task(alice, LOST, **numbered())
    for stage in stages:
        run(lost, stage)
    again = lose(lost)
    for stage in Stage:
        run(again, stage)
    assert Task.objects.get(pk=again.pk).status == "pending"
    age(again)

    recovery.recover_all()

    run(again)
    assert text_of(again) == OWN


def test_an_end_of_a_lost_document_is_not_recorded(alice: User) -> None:
    """A worker that started the lost document before the restore ends it now."""
    lost = make_task(alice, LOST)
    run(lost, Stage.OCR)
    state = runstate.start(lost.pk, stage=Stage.POSTPROCESS).state
    assert state
    again = lose(lost)
    ended = runstate.complete(state, result={"text": LOST}, usage={}).state
    assert ended

    assert not completion.record(ended)

    row = Task.objects.get(pk=again.pk)
    assert (row.status, row.result) == ("pending", None)


def test_a_document_of_an_earlier_release_keeps_its_artifacts(alice: User) -> None:
    """Neither its row nor its run-state has a UUID."""
    row = make_row(alice, OWN)
    columns = ", ".join(str(f.column) for f in Task._meta.concrete_fields if f.column not in {"task_id", "uuid"})
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO etl_task ({columns}) SELECT {columns} FROM etl_task RETURNING task_id")
        (task_id,) = cursor.fetchone()
    task = Task.objects.get(pk=task_id)
    runstate.create(task, stage=Stage.OCR)
    valkey().hdel(runstate.key_of(task_id), "uuid")

    run(task)

    assert text_of(task) == OWN
    done = Task.objects.get(pk=task_id)
    assert (done.uuid, row.uuid != "") == ("", True)
    assert done.metadata["artifact_mineru_markdown_key"].startswith(f"etl/tasks/{task_id}/ocr-1/")
    after_restore.unknown_artifacts(delete=True)
    assert text_of(task) == OWN


def test_artifacts_of_a_lost_document_are_unknown(alice: User) -> None:
    storage.delete_many([item.key for item in storage.list_objects(artifacts.TASKS)])
    lost = make_task(alice, LOST, rule=make_rule(alice), **numbered())
    run(lost)
    again = lose(lost)
    again.generation = again.run
    again.save()
    runstate.create(again, stage=Stage.OCR)
    run(again)
    number = len(keys_of(lost))

    assert after_restore.unknown_artifacts(delete=True) == number > 0

    assert keys_of(lost) == []
    assert text_of(again) == OWN


def keys_of(task: Any) -> list[str]:
    return [item.key for item in storage.list_objects(artifacts.folder(task)) if f"-{task.run}/" in item.key]


def test_a_delivery_is_not_taken_over_from_a_lost_attempt(dataset: Dataset, alice: User) -> None:
    """The folder of the lost attempt has the fencing token that the restored sequence issues again."""
    job = make_job(dataset, alice, 1)
    execution.drain()
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value + 1 FROM exports_fence_seq")
        (token,) = cursor.fetchone()
    chunk = job.chunks.get()
    name = planning.file_name(chunk.pair, job.shape).rpartition("/")[2]
    lost = f"{bundles.folder_of_attempt(job, token)}/{name}"
    storage.put(lost, b"of the lost attempt", content_type="text/csv")

    exports_completion.complete(job.pk)
    assert not Receipt.objects.exists()
    Job.objects.update(completion_lease_until=None)
    exports_completion.complete(job.pk)

    receipt = Receipt.objects.get(job=job)
    assert receipt.object_key != lost
    assert b"".join(storage.read(receipt.object_key)) == b"".join(storage.read(chunk.path))
    assert storage.head(lost) is None


def test_a_list_does_not_show_the_status_of_a_lost_document(alice: User) -> None:
    lost = make_task(alice, LOST, **numbered())
    run(lost, Stage.OCR)  # its run-state waits for post-processing
    again = lose(lost)

    fitting = {
        each: list(lookup.with_status(Task.objects.all(), each)) for each in (Status.PENDING, Status.LLM_PROCESSING)
    }

    assert fitting == {Status.PENDING: [again], Status.LLM_PROCESSING: []}
