"""Temporary folders for documents in ETL_CACHE_DIR, deleted after use.

A killed worker leaves its folder behind. The process that uses a folder holds a lock on it, which the kernel releases
when the process ends, so unlocked folders are leftovers. Locks do not cover processes on other machines that share
ETL_CACHE_DIR, or processes before a reboot. Their folders have a different name prefix, and are deleted only after more
time than a stage can take.
"""

import errno
import fcntl
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp

import structlog
from django.conf import settings

from config.platform.observability import logs
from etl.core.errors import WorkspaceFull

log = structlog.get_logger(__name__)

PREFIX = "sluice-document-"
FULL = (errno.ENOSPC, errno.EDQUOT)
BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def folder() -> Iterator[Path]:
    """Create a folder for a document, and delete it when the block ends. Raises WorkspaceFull."""
    with translate_errors():
        clear()
        path, lock = create(root())
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


@contextmanager
def translate_errors(*numbers: int) -> Iterator[None]:
    """Log file system errors, and translate them to WorkspaceFull. `numbers`: only errors with these numbers."""
    try:
        yield
    except OSError as error:
        if numbers and error.errno not in numbers:
            raise
        log_unusable(error)
        raise WorkspaceFull from None


def check() -> bool:
    """Return whether ETL_CACHE_DIR is usable, and log an error if not. Called when a worker starts."""
    try:
        root().mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=root()) as file:
            file.write(b"room")
    except OSError as error:
        log_unusable(error)
        return False
    return True


def log_unusable(error: OSError) -> None:
    log.error("workspace_unusable", setting="ETL_CACHE_DIR", error=logs.describe(error))


def clear() -> int:
    """Delete the folders of processes that have ended. Return the number of deleted folders."""
    deleted = sum(delete_leftover(path) for path in root().glob(f"{PREFIX}*"))
    if deleted:
        log.info("leftovers_deleted", folders=deleted)
    return deleted


def delete_leftover(path: Path) -> bool:
    """Delete a folder if its process has ended. Return whether the folder was a leftover.

    The lock is held until the folder is deleted. Otherwise, if the folder is new and not locked yet, its creator could
    lock and use it while it is being deleted.
    """
    try:
        lock = lock_folder(path) if path.name.startswith(prefix()) else None
        if lock is None and not is_old(path):
            return False
    except OSError:  # in use, already deleted, or owned by another system user
        return False
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)
    return True


def is_old(path: Path) -> bool:
    return path.stat().st_mtime < time.time() - 2 * settings.SLUICE.etl_task_timeout - 600


# ---- Folders --------------------------------------------------------------------------------------------------------
def root() -> Path:
    path: Path = settings.SLUICE.etl_cache_dir
    return path


@cache
def prefix() -> str:
    """Return the prefix of folders of this kernel's processes, also in containers. Locks apply only to these."""
    try:
        kernel = BOOT.read_text(encoding="ascii")
    except OSError:
        kernel = platform.node()
    return f"{PREFIX}{kernel.strip()[:23]}-"


def create(parent: Path) -> tuple[Path, int]:
    """Create and lock a folder. Return its path and the descriptor of the lock. Raises OSError."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        path = Path(mkdtemp(prefix=prefix(), dir=parent))
        # Another process can delete the folder as a leftover before it is locked.
        with suppress(BlockingIOError, FileNotFoundError):
            lock = lock_folder(path)
            if path.exists():
                return path, lock
            os.close(lock)


def lock_folder(path: Path) -> int:
    """Lock a folder. Return the descriptor. Raises BlockingIOError if another process has locked it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
