"""The steps of `manage.py reconcile`. tests/operations/test_restore.py tests a complete restore."""

from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import RequestFactory
from pydantic import SecretStr
from rest_framework.request import Request

from config.platform import storage
from config.platform.db import sequences
from config.platform.heartbeat import LeaseLost
from etl import runstate
from etl.core.states import Stage
from etl.maintenance import after_restore, recovery
from etl.models import Task
from etl.pipeline import artifacts
from exports.api import event_stream
from exports.jobs import actions
from exports.models import Chunk, Dataset, File, Job, Link, Slot
from exports.worker import leases
from tests.integration.etl_factories import make_task
from tests.integration.factories import claim_one, end_chunk, fail_chunk, make_job
from tests.integration.stage_runs import ConfigureStages, age, run
from tests.integration.test_completion import finish


def reconcile(*arguments: str) -> str:
    output = StringIO()
    call_command("reconcile", *arguments, stdout=output)
    return output.getvalue()


def last_value(sequence: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT last_value FROM {sequence}")
        return int(cursor.fetchone()[0])


def next_token() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('exports_fence_seq')")
        return int(cursor.fetchone()[0])


def test_no_number_is_reused(alice: User) -> None:
    """Sequences of tables with smaller ID types are advanced by less."""
    before, user_before = next_token(), last_value("auth_user_id_seq")
    assert sequences.advance() >= 20
    assert next_token() == before + sequences.STEPS["bigint"] + 1
    assert last_value("auth_user_id_seq") == user_before + sequences.STEPS["integer"]
    bob = User.objects.create_user("bob")
    assert bob.pk > alice.pk + 1


def test_earlier_workers_are_fenced_off_without_counting_attempts(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 2)
    stale = claim_one(backend="gone")
    assert stale

    reconcile()

    with pytest.raises(LeaseLost):
        leases.renew(stale)
    chunk = Chunk.objects.get(pk=stale.chunk_id)
    assert (chunk.status, chunk.attempts) == ("pending", 0)
    assert Slot.objects.held().exists(), "the call may still run, so the reaper has to end it first"
    fresh = claim_one(backend="new")
    assert fresh
    assert fresh.token > stale.token + 1_000
    assert Job.objects.get(pk=job.pk).event_seq > 1_000_000


def test_a_retried_job_sends_events_with_unused_numbers(dataset: Dataset, alice: User) -> None:
    """The job was also retried in the lost period, so clients have already received events with the next numbers."""
    job = make_job(dataset, alice, 1)
    fail_chunk()
    job.refresh_from_db()
    assert job.status == "failed"
    received = job.event_seq
    lost = received + 1

    reconcile()

    start = reconnect(job, received)
    assert start is None or start.after is None, "the client does not wait for events that it has received"
    actions.retry(job)
    end_chunk()
    job.refresh_from_db()
    assert job.event_seq > lost
    again = reconnect(job, lost)
    assert again
    assert b"event: snapshot" in again.opening, "the client receives the current state"


def reconnect(job: Job, received: int) -> event_stream.JobStreamStart | None:
    """Return the start of the stream for a client with this last event ID."""
    request = Request(RequestFactory().get("/", headers={"Last-Event-ID": str(received)}))
    return event_stream.begin(Job.objects.with_running().with_queue_position().get(pk=job.pk), request)


def test_earlier_links_are_void_and_receipts_of_missing_objects_expire(dataset: Dataset, alice: User) -> None:
    kept, gone = (finish(make_job(dataset, alice, 1, key=key)) for key in ("KEPT", "GONE"))
    storage.delete(gone.object_key)

    reconcile()

    assert not Link.objects.filter(revoked_at=None).exists()
    kept.refresh_from_db()
    gone.refresh_from_db()
    assert kept.deleted_at is None
    assert gone.deleted_at == gone.expires_at


def test_it_refuses_the_wrong_bucket(dataset: Dataset, alice: User) -> None:
    """Otherwise, a wrong S3_BUCKET would permanently invalidate all receipts and files."""
    receipt = finish(make_job(dataset, alice, 1))
    storage.delete_many([receipt.object_key, File.objects.get().path])
    before = next_token()

    with pytest.raises(CommandError, match="S3_BUCKET"):
        reconcile()
    receipt.refresh_from_db()
    assert (receipt.deleted_at, File.objects.count(), next_token()) == (None, 1, before + 1)

    reconcile("--bucket-is-lost")
    receipt.refresh_from_db()
    assert receipt.deleted_at
    assert not File.objects.exists()


def test_missing_and_replaced_files_leave_the_cache(dataset: Dataset, alice: User) -> None:
    for key in ("KEPT", "GONE", "REPLACED"):
        finish(make_job(dataset, alice, 1, key=key))
    paths = dict(File.objects.values_list("key", "path"))
    storage.delete(paths["GONE"])
    storage.delete(paths["REPLACED"])
    storage.put(paths["REPLACED"], b"later", content_type="text/csv")

    reconcile()

    assert list(File.objects.values_list("key", flat=True)) == ["KEPT"]


def test_it_deletes_only_its_own_objects_and_only_on_request(dataset: Dataset, alice: User) -> None:
    """Otherwise, `reconcile` with another service's database would empty the bucket."""
    storage.delete_many(item.key for item in storage.list_objects(""))
    receipt = finish(make_job(dataset, alice, 1, key="LOST"))
    path = File.objects.get().path
    storage.put(f"{dataset.base_path}/notes.txt", b"not ours", content_type="text/plain")
    storage.put(f"{artifacts.TASKS}4711/ocr-1/result.json", b"{}", content_type="application/json")
    ours = {path, receipt.object_key, f"{artifacts.TASKS}4711/ocr-1/result.json"}
    Job.objects.all().delete()
    File.objects.all().delete()

    output = reconcile()
    assert ours <= {item.key for item in storage.list_objects("")}
    assert [line.split()[0] for line in output.splitlines()[-3:]] == ["1", "1", "1"]

    reconcile("--delete-unknown")
    assert not ours & {item.key for item in storage.list_objects("")}
    assert storage.head(f"{dataset.base_path}/notes.txt")
    assert [line.split()[0] for line in reconcile().splitlines()[-3:]] == ["0", "0", "0"]
    storage.delete(f"{dataset.base_path}/notes.txt")


def test_deletion_of_unknown_objects_affects_no_worker_or_link(dataset: Dataset, alice: User) -> None:
    """The deletion runs while the service runs."""
    receipt = finish(make_job(dataset, alice, 1, key="DONE"))
    make_job(dataset, alice, 1)
    held = claim_one(backend="test")
    assert held
    reconcile("--delete-unknown")
    leases.renew(held)
    assert receipt.links.get().revoked_at is None


def test_a_document_with_a_newer_run_state_continues(alice: User, configure_stages: ConfigureStages) -> None:
    """The document was retried in the lost period. Without `reconcile`, recovery would never continue it."""
    task = make_task(alice)
    Task.objects.filter(pk=task.pk).update(generation=2)
    task.refresh_from_db()
    runstate.create(task, stage=Stage.OCR)
    Task.objects.filter(pk=task.pk).update(generation=1)
    task.refresh_from_db()
    age(task)
    recovery.recover_all()
    assert runstate.find_due([task])[task.pk].verdict is runstate.Verdict.NEWER

    reconcile()
    age(task)
    recovery.recover_all()

    state: Any = runstate.read(task.pk)
    assert state.generation == 1 + after_restore.GENERATION_STEP
    run(task)
    assert Task.objects.get(pk=task.pk).status == "completed"


def test_run_states_of_missing_documents_are_deleted(alice: User, configure_stages: ConfigureStages) -> None:
    kept, lost = make_task(alice), make_task(alice)
    Task.objects.filter(pk=lost.pk).delete()

    assert after_restore.forget_unknown_tasks() == 1
    assert runstate.read(lost.pk) is None
    assert runstate.read(kept.pk)


def test_it_reports_an_unreachable_server(alice: User, configure_stages: ConfigureStages) -> None:
    configure_stages(etl_redis_url=SecretStr("redis://127.0.0.1:1/0"), redis_url=SecretStr("redis://127.0.0.1:1/0"))
    with pytest.raises(CommandError, match="Run the command again"):
        reconcile()
