"""The work folder of documents: leftovers of killed workers, and a lack of space. B12, B13."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from django.conf import LazySettings
from django.contrib.auth.models import User

from etl.core import workspace
from etl.core.errors import WorkspaceFull
from etl.core.states import Stage
from etl.maintenance import cleanup
from tests import scripted_stages
from tests.conftest import change_settings
from tests.integration.etl_factories import make_task
from tests.integration.stage_runs import ConfigureStages, row_of, run, run_when_due, seen

PROJECT = Path(__file__).parents[2]
HOLD = """
import django, time
django.setup()
from etl.core import workspace
with workspace.folder() as folder:
    (folder / "17.pdf").write_text("private")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def cache(settings: LazySettings, tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    change_settings(settings, etl_cache_dir=folder)
    return folder


@pytest.fixture
def other(cache: Path) -> Iterator[subprocess.Popen[str]]:
    """Another worker that is reading a document."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings", "ETL_CACHE_DIR": str(cache)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline()
        yield process
        process.kill()


def folders(cache: Path) -> list[Path]:
    return sorted(cache.glob("sluice-document-*"))


# ---- Leftovers ------------------------------------------------------------------------------------------------------
def test_leftovers_of_killed_workers_are_deleted_and_folders_in_use_are_kept(
    cache: Path, other: "subprocess.Popen[str]"
) -> None:
    """B12: before each document, whatever their age."""
    (used,) = folders(cache)
    with workspace.folder() as ours:
        assert folders(cache) == sorted([used, ours])
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        assert workspace.clear() == 1
        assert folders(cache) == [ours]
    assert folders(cache) == []


def test_a_leftover_is_locked_until_it_is_gone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B12: it may be a new folder that another worker is about to lock. That worker must find it locked or deleted."""
    new = cache / f"{workspace.prefix()}new"
    new.mkdir(parents=True)
    refused: list[Path] = []
    delete = shutil.rmtree

    def delete_beside_its_worker(path: Path, **options: Any) -> None:
        with pytest.raises(BlockingIOError):
            workspace.lock_folder(path)
        refused.append(path)
        delete(path, **options)

    monkeypatch.setattr(shutil, "rmtree", delete_beside_its_worker)
    assert workspace.clear() == 1
    assert refused == [new]
    assert folders(cache) == []


@pytest.mark.django_db
def test_the_sweep_deletes_leftover_folders(cache: Path, other: "subprocess.Popen[str]") -> None:
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    cleanup.sweep()
    assert folders(cache) == []


def test_the_sweep_creates_no_folder(cache: Path) -> None:
    assert workspace.clear() == 0
    assert not cache.exists()


def test_folders_of_other_machines_are_kept_until_they_are_old(cache: Path, settings: LazySettings) -> None:
    """Locks of other machines are not visible here."""
    longest = 2 * settings.SLUICE.etl_task_timeout + 600
    for name, age in (("sluice-document-other-1", longest + 60), ("sluice-document-other-2", longest - 60)):
        folder = cache / name
        folder.mkdir(parents=True)
        then = folder.stat().st_mtime - age
        os.utime(folder, (then, then))
    assert workspace.clear() == 1
    assert [folder.name for folder in folders(cache)] == ["sluice-document-other-2"]


def test_a_folder_deleted_during_creation_is_created_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock_folder, first_call = workspace.lock_folder, iter([True])

    def lock_after_deletion(path: Path) -> int:
        if next(first_call, False):
            workspace.clear()  # by another process, right after the folder was created
        return lock_folder(path)

    monkeypatch.setattr(workspace, "lock_folder", lock_after_deletion)
    with workspace.folder() as folder:
        assert folder.is_dir()


# ---- No space -------------------------------------------------------------------------------------------------------
def test_a_missing_work_folder_is_not_an_error_of_the_document(
    alice: User, configure_stages: ConfigureStages, tmp_path: Path
) -> None:
    """B12: the stage is retried, the log names the setting, and the error of the task names the cause."""
    task = make_task(alice)
    (tmp_path / "file").touch()
    configure_stages(etl_cache_dir=tmp_path / "file" / "documents")
    with structlog.testing.capture_logs() as lines:
        run(task, Stage.OCR)
    assert (seen(task).status, seen(task).attempts["ocr"]) == ("mineru_parsing", 1)
    (line,) = [line for line in lines if line["event"] == "workspace_unusable"]
    assert (line["log_level"], line["setting"], line["error"]) == (
        "error", "ETL_CACHE_DIR", "NotADirectoryError (ENOTDIR)",
    )  # fmt: skip
    for _ in range(2):
        run_when_due(task, Stage.OCR)
    error = row_of(task).error
    assert error
    assert (error["code"], error["retryable"], error["detail"]) == ("ocr_failed", True, WorkspaceFull().detail)

    configure_stages(etl_cache_dir=tmp_path)
    again = make_task(alice)
    assert run(again, Stage.OCR) == [True]


@pytest.mark.usefixtures("configure_stages")
def test_a_full_disk_is_not_an_error_of_the_document(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """B12: /dev/full refuses writes."""
    task = make_task(alice)
    opened = Path.open
    monkeypatch.setattr(
        Path, "open",
        lambda path, *args, **options: (
            open("/dev/full", "wb") if path.name == f"{task.pk}.txt" else opened(path, *args, **options)  # noqa: PTH123, SIM115
        ),
    )  # fmt: skip
    with structlog.testing.capture_logs() as lines:
        run(task, Stage.OCR)
    assert [line["error"] for line in lines if line["event"] == "workspace_unusable"] == ["OSError (ENOSPC)"]
    monkeypatch.undo()
    assert run_when_due(task, Stage.OCR)
    assert len(scripted_stages.calls(f"ocr-{task.pk}")) == 1


def test_an_unusable_work_folder_is_reported_at_startup(cache: Path) -> None:
    assert workspace.check()
    cache.rmdir()
    cache.touch()
    with structlog.testing.capture_logs() as lines:
        assert not workspace.check()
    assert [(line["setting"], line["error"]) for line in lines] == [("ETL_CACHE_DIR", "FileExistsError (EEXIST)")]
