"""Temporary folders for documents in ETL_CACHE_DIR, deleted after use.

A killed worker leaves its folder behind. The process that uses a folder holds a lock on it, which the kernel releases
when the process ends: unlocked folders are leftovers. Locks do not cover processes on other machines that share
ETL_CACHE_DIR, or processes before a reboot. Their folders have another infix, and are deleted only after more time than
a stage can take.
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
    """Create a folder for a document, and delete it at the end. Raises WorkspaceFull."""
    with usable():
        clear()
        path, lock = create(root())
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


@contextmanager
def usable(*numbers: int) -> Iterator[None]:
    """Translate errors of the file system, or only those with these numbers, to WorkspaceFull, and log them."""
    try:
        yield
    except OSError as error:
        if numbers and error.errno not in numbers:
            raise
        log_unusable(error)
        raise WorkspaceFull from None


def check() -> bool:
    """Return whether the folder is usable, and log if it is not. Called when a worker starts."""
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
    """Delete the folders of processes that have ended. Return their number."""
    deleted = sum(deleted_leftover(path) for path in root().glob(f"{PREFIX}*"))
    if deleted:
        log.info("leftovers_deleted", folders=deleted)
    return deleted


def deleted_leftover(path: Path) -> bool:
    """Delete a folder if its process has ended. Return whether it had.

    The lock is held until the folder is gone: a new one is not locked yet, and its creator would lock it and use it.
    """
    try:
        lock = locked(path) if path.name.startswith(prefix()) else None
        if lock is None and not is_old(path):
            return False
    except OSError:  # in use, deleted meanwhile, or of another user
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
    """Return the prefix of folders of processes with the same kernel, to which locks apply, also in containers."""
    try:
        kernel = BOOT.read_text(encoding="ascii")
    except OSError:
        kernel = platform.node()
    return f"{PREFIX}{kernel.strip()[:23]}-"


def create(parent: Path) -> tuple[Path, int]:
    """Return a new folder, and the descriptor of its lock. Raises OSError."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        path = Path(mkdtemp(prefix=prefix(), dir=parent))
        with suppress(BlockingIOError, FileNotFoundError):  # deleted as a leftover before it was locked
            lock = locked(path)
            if path.exists():
                return path, lock
            os.close(lock)


def locked(path: Path) -> int:
    """Lock a folder. Raises BlockingIOError if another process has locked it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
