"""Where documents lie while they are read: a folder for each in ETL_CACHE_DIR, gone when it is done with.

A worker that is killed leaves its folder. Each is locked by the process that uses it, and the kernel drops the lock
with the process, however that ended: what is not locked is left over. Locks tell nothing of processes on other machines
that share the ETL_CACHE_DIR, nor of those before this machine was started anew; their folders have another name in
the middle, and are left alone for longer than any run of a stage can take.
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
    """Make a folder of our own for a document, and delete it at the end. Raises NoRoom."""
    with usable():
        clear()
        path, lock = make(root())
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


@contextmanager
def usable(*numbers: int) -> Iterator[None]:
    """Whatever the file system refuses in here, or what of it has these numbers, means that this worker has no room.
    The log says what it was."""
    try:
        yield
    except OSError as error:
        if numbers and error.errno not in numbers:
            raise
        complain(error)
        raise WorkspaceFull from None


def check() -> bool:
    """Whether documents can lie here: whoever starts a worker is told before the first one comes."""
    try:
        root().mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=root()) as file:
            file.write(b"room")
    except OSError as error:
        complain(error)
        return False
    return True


def complain(error: OSError) -> None:
    log.error("workspace_unusable", setting="ETL_CACHE_DIR", error=logs.describe(error))


def clear() -> int:
    """Delete what is left of processes that are gone. Returns how many folders that were."""
    found = [path for path in root().glob(f"{PREFIX}*") if is_left(path)]
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
    if found:
        log.info("leftovers_deleted", folders=len(found))
    return len(found)


def is_left(path: Path) -> bool:
    try:
        return is_unlocked(path) if path.name.startswith(ours()) else is_old(path)
    except OSError:  # gone meanwhile, or another user's
        return False


def is_unlocked(path: Path) -> bool:
    # The name may be that of one that is just being made and not locked yet: whoever makes it looks whether it stayed.
    with suppress(BlockingIOError):
        os.close(locked(path))
        return True
    return False


def is_old(path: Path) -> bool:
    return path.stat().st_mtime < time.time() - 2 * settings.SLUICE.etl_task_timeout - 600


# ---- Folders --------------------------------------------------------------------------------------------------------
def root() -> Path:
    path: Path = settings.SLUICE.etl_cache_dir
    return path


@cache
def ours() -> str:
    """Return how the folders' names begin of all processes that this one's locks are good for: containers too."""
    try:
        kernel = BOOT.read_text(encoding="ascii")
    except OSError:
        kernel = platform.node()
    return f"{PREFIX}{kernel.strip()[:23]}-"


def make(parent: Path) -> tuple[Path, int]:
    """Return a new folder, and the descriptor that it is locked by. Raises OSError."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        path = Path(mkdtemp(prefix=ours(), dir=parent))
        with suppress(BlockingIOError, FileNotFoundError):  # who clears up has found it before it was locked
            lock = locked(path)
            if path.exists():
                return path, lock
            os.close(lock)


def locked(path: Path) -> int:
    """Lock a folder. Raises BlockingIOError when somebody has done so."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
