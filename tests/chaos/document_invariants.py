"""Invariants of documents after a fault, checked in Postgres, object storage, Valkey, and on the disk.

Every task ended once with the expected result, and no leftovers exist.
"""

import hashlib
import io
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from django.conf import settings

from config.platform import storage
from etl import tasks
from etl.core import errors, workspace
from etl.core.stage_context import StageContext
from etl.core.states import ENDED, Stage, Status
from etl.maintenance import after_restore
from etl.models import Task
from etl.pipeline import artifacts
from etl.providers.base import page_marker
from etl.providers.local import LocalProvider
from etl.runstate import key_of
from tests import samples, scripted_stages
from tests.broker import queued, valkey
from tests.chaos.changes import moves
from tests.chaos.documents import BOTH_QUEUES, consumes
from tests.chaos.site import Site
from tests.waiting import wait_until


def check(site: Site) -> None:
    settle_all(site)
    check_ends(site.allowed.retried_tasks)
    check_rows(site.allowed.retried_tasks)
    check_results()
    check_ocr_calls(site)
    check_artifacts()
    check_run_states()
    check_temporary_files(site)


def settle_all(site: Site) -> None:
    """I6: with running workers, every task ends, and their queues become empty."""
    if Task.objects.open().exists() and not any(consumes(worker, "etl-ocr") for worker in site.workers):
        site.start_worker(BOTH_QUEUES)
    wait_until(lambda: not Task.objects.open().exists(), limit=90, every=0.2)
    for queue in BOTH_QUEUES.split(","):
        if any(consumes(worker, queue) for worker in site.workers):
            wait_until(lambda queue=queue: not queued(queue), limit=60, every=0.1)  # type: ignore[misc]


def check_ends(retried: Iterable[str]) -> None:
    """I1, I7: each end was written once, with the row's generation, and never changed."""
    changes = moves("task")
    for task in Task.objects.exclude(pk__in=retried):
        its = changes[str(task.pk)]
        assert [(move.was, move.became) for move in its] == [(Status.PENDING, task.status)], f"task {task.pk}: {its}"
        assert its[0].token == its[0].old_token, f"task {task.pk} ended under another generation"


def check_rows(retried: Iterable[str]) -> None:
    for task in Task.objects.all():
        assert storage.head(task.document_key), f"the document of task {task.pk} is missing"
        if task.status == Status.FAILED:
            assert task.error
            assert set(task.error) == {"code", "stage", "detail", "retryable"}
            assert task.error["code"] in errors.codes()
            assert task.error["stage"] == task.phase
            assert task.result is None
        if task.status == Status.CANCELLED and str(task.pk) not in retried:
            unread = task.phase == Stage.OCR  # otherwise, it waited for post-processing
            unused = artifacts.folder(task) if unread else artifacts.result_folder(task)
            assert not list(storage.list_objects(unused)), f"task {task.pk} was processed"
            assert not (unread and scripted_stages.calls(f"ocr-{task.pk}")), f"task {task.pk} was cancelled and read"


# ---- Results --------------------------------------------------------------------------------------------------------
def check_results() -> None:
    """I2: every artifact that a row names exists and has the expected content."""
    with closing(LocalProvider()) as provider:
        for task in Task.objects.filter(status=Status.COMPLETED):
            result, key = task.result, task.result and task.result["markdown_s3_key"]
            assert result
            assert key == task.metadata["artifact_mineru_markdown_key"]
            assert key.startswith(artifacts.ocr_folder(task))
            content = b"".join(storage.read(key))
            assert Path(key).stem == hashlib.sha256(content).hexdigest(), f"task {task.pk}: incomplete Markdown"
            output = artifacts.find(artifacts.output_key(task))
            assert output, f"task {task.pk} has no output"
            assert {name: result[name] for name in output} == output, f"task {task.pk}: row and output differ"
            if truth := TRUTHS[task.metadata["provider"]]:
                assert content.decode() == artifacts.clean(truth(task, provider)), (
                    f"task {task.pk} ({task.filename}): its Markdown differs from its document"
                )
            if result["metadata"]["provenance"]["strategy"] == "scripted":
                assert result["data"] == {"characters": len(content.decode())}


def scripted(task: Task, _provider: LocalProvider) -> str:
    text = io.TextIOWrapper(io.BytesIO(b"".join(storage.read(task.document_key))), encoding="utf-8").read()
    return f"{page_marker(1)}\n{text}"  # with line breaks as Python reads them


def local(task: Task, provider: LocalProvider) -> str:
    """Return the local provider's result for the document, computed here without faults."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{task.pk}.{task.kind}"
        path.write_bytes(b"".join(storage.read(task.document_key)))
        return provider.convert(samples.document(path), context=StageContext(seconds=120)).markdown


# Only the tests know the results of a MinerU server, because they script its responses.
TRUTHS: dict[str, Callable[[Task, LocalProvider], str] | None] = {"scripted": scripted, "local": local, "mineru": None}


def check_ocr_calls(site: Site) -> None:
    """Check that each run has one OCR result, and that each OCR call is an attempt.

    The attempts include those that were handed back, and those that were lost with a run-state.
    """
    returned = {"stage_released", "stage_waits_for_storage"}  # log actions that hand an attempt back
    handed_back = Counter(line["etl_task_id"] for line in lines(site) if line.get("action") in returned)
    max_attempts = settings.SLUICE.etl_ocr_max_attempts
    for task in Task.objects.all():
        kept = [item.key for item in storage.list_objects(artifacts.ocr_folder(task))]
        assert sum(key.endswith(".md") for key in kept) <= 1, f"task {task.pk} has several results of OCR"
        counted = task.metadata.get("attempts", {}).get(Stage.OCR, 0)
        # Every generation after the first belongs to a recreated run-state or a retry.
        lost = max_attempts * (task.generation - task.first_run)
        calls = len(scripted_stages.calls(f"ocr-{task.pk}"))
        assert calls <= counted + handed_back[task.pk] + lost, f"task {task.pk} had {calls} OCR calls"


def lines(site: Site) -> list[dict[str, Any]]:
    return [json.loads(line) for line in site.logs().splitlines() if line.startswith("{") and line.endswith("}")]


# ---- Leftovers -----------------------------------------------------------------------------------------------------
def check_artifacts() -> None:
    """I5: every artifact belongs to an existing task."""
    runs = after_restore.runs_of(set(Task.objects.values_list("pk", flat=True)))
    found = {artifacts.run_folder(item.key) for item in storage.list_objects(artifacts.TASKS)}
    unknown = {run for run in found if run is None or run.run not in runs.get(run.task_id, ())}
    assert not unknown, f"artifacts without a task: {unknown}"
    assert not list(storage.list_uploads("etl/"))


def check_run_states() -> None:
    """I5: the run-state agrees with the row, has no token after the end, and expires."""
    redis: Any = valkey()
    prefix = settings.SLUICE.etl_redis_prefix
    for key in redis.scan_iter(match=f"{prefix}*"):
        assert redis.ttl(key) != -1, f"{key!r} never expires"  # -2: it has expired
    for task in Task.objects.all():
        run_state = redis.hgetall(key_of(task.pk))
        if not run_state:
            continue
        assert run_state[b"status"].decode() == task.status, f"task {task.pk}: Valkey and row differ"
        assert task.status in ENDED
        assert run_state.get(b"token", b"") == b"", f"task {task.pk} is still held"
        assert 0 < redis.ttl(key_of(task.pk)) <= settings.SLUICE.etl_state_terminal_ttl_seconds


def check_temporary_files(site: Site) -> None:
    """I5: leftovers of killed workers are deleted by the next worker, or by beat's hourly sweep."""
    wait_until(lambda: not on_the_disk(site) or (tasks.sweep.delay() and False), limit=30, every=0.5)


def on_the_disk(site: Site) -> list[Path]:
    """Return the documents' files in ETL_CACHE_DIR and TMPDIR."""
    cache: Path = settings.SLUICE.etl_cache_dir
    return list(chain(cache.glob(f"{workspace.PREFIX}*"), site.folder.glob("*.upload*"), site.folder.glob("tmp*")))
