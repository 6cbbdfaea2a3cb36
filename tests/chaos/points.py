"""Fault points: named places in Sluice's code at which a test makes a worker crash, stop, or wait.

The product contains no code for them: `settings.py` in this folder wraps the functions in processes that tests start. A
test arms a point with a file in a folder. The first process that reaches the point removes the file and performs the
action, so each file works once.
"""

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from typing import Any

FOLDER = "CHAOS_POINTS"  # the environment variable with the folder
GRACE = "grace"  # the file with the seconds for which sweeps keep unreferenced objects
GRACE_SECONDS = 8  # by default: longer than any chunk takes in these tests

# By name: the wrapped function, and whether the point is before or after it.
POINTS = {
    "chunk claimed": ("exports.worker.leases:claim_batch", "after"),
    "batch claimed": ("exports.worker.leases:claim_batch", "after"),
    "chunk of a batch ended": ("exports.worker.batches:Batch.end", "after"),
    "export begun": ("exports.worker.execution:export", "before"),
    "call about to begin": ("exports.source.database:SourceSession.stream", "before"),
    "part handed over": ("config.platform.storage.parts:Multipart.send", "after"),
    "about to commit": ("config.platform.storage.uploads:Upload._commit", "before"),
    "PUT checked": ("config.platform.storage.uploads:Upload._put", "before"),
    "commit checked": ("config.platform.storage.uploads:Upload._complete", "before"),
    "object committed": ("config.platform.storage.uploads:Upload._commit", "after"),
    "outcome written": ("exports.worker.transitions:finish", "after"),
    "bundle claimed": ("exports.worker.completion:claim", "after"),
    "bundle made": ("exports.delivery.bundles:make", "after"),
    "receipt inserted": ("exports.delivery.receipts:issue", "after"),
    "receipt committed": ("exports.worker.completion:issue", "after"),
    "reaper took back": ("exports.maintenance.lost_leases:reclaim_batch", "after"),
    "document fetched": ("etl.pipeline.stages.ocr:fetch", "after"),
    "document read": ("etl.pipeline.stages.ocr:refuse_empty", "after"),
    "Markdown stored": ("etl.pipeline.artifacts:commit", "before"),
    "OCR kept": ("etl.pipeline.artifacts:store_ocr", "after"),
    "OCR handed over": ("etl.runstate:advance", "after"),
    "post-processing begun": ("etl.pipeline.stages.postprocess:warn_of_loss", "after"),
    "model answered": ("etl.postprocessors.client:call", "after"),
    "answer kept": ("etl.pipeline.response_cache:StoredResponseCache.put", "after"),
    "output stored": ("etl.pipeline.stages.postprocess:process", "after"),
    "end decided": ("etl.runstate:complete", "after"),
    "end written": ("etl.pipeline.completion:write", "after"),
}


class Points:
    """The folder of armed points, as used by the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers = count()
        folder.mkdir()

    def arm(self, name: str, action: str, *, times: int = 1, key: str = "") -> None:
        """Make the next `times` processes that reach the point `die`, `stop`, or `wait`.

        `stop` lasts until SIGCONT, `wait` until `release`. With `key`, only processes whose last chunk has this key
        are affected.
        """
        assert name in POINTS, name
        for number in islice(self.numbers, times):
            file = self.folder / f"{name}.{number:04}"  # used in the order of arming
            file.with_suffix(".new").write_text(f"{action} {key}")
            file.with_suffix(".new").rename(file)

    def armed(self, name: str) -> int:
        """Return the number of unused files of a point."""
        return len(list(self.folder.glob(f"{name}.[0-9]*")))

    def release(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()

    def set_grace(self, seconds: float) -> None:
        """Change for how long the next sweeps keep unreferenced objects."""
        file = self.folder / GRACE
        file.with_suffix(".new").write_text(str(seconds))
        file.with_suffix(".new").rename(file)

    def reached(self) -> list[int]:
        """Return the processes that reached an armed point, in order."""
        file = self.folder / "reached"
        return [int(line) for line in file.read_text().split()] if file.exists() else []


work = {"key": ""}  # key of the chunk that this process claimed or started last


def grace() -> timedelta:
    """Return for how long a sweep keeps unreferenced objects."""
    file = Path(os.environ[FOLDER]) / GRACE
    return timedelta(seconds=float(file.read_text()) if file.exists() else GRACE_SECONDS)


def install() -> None:
    """Wrap the functions in a process that a test started."""
    folder = Path(os.environ[FOLDER])
    for name, (place, when) in POINTS.items():
        module, _, path = place.partition(":")
        holder: Any = import_module(module)
        *outer, last = path.split(".")
        for attribute in outer:
            holder = getattr(holder, attribute)
        setattr(holder, last, wrapped(getattr(holder, last), name, when=when, folder=folder))


def wrapped(function: Callable[..., Any], name: str, *, when: str, folder: Path) -> Callable[..., Any]:
    @wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        if name == "export begun":
            work["key"] = arguments[0].pair.key
        if when == "before":
            reach(folder, name)
        result = function(*arguments, **named)
        if name == "chunk claimed" and result:
            work["key"] = result[0].pair.key
        if when == "after" and is_reached(name, result):
            reach(folder, name)
        return result

    return run


def is_reached(name: str, result: Any) -> bool:
    """Return whether a worker has reached a point after a function. A claim must have succeeded."""
    return len(result) > 1 if name == "batch claimed" else bool(result) or "claim" not in name


def reach(folder: Path, name: str) -> None:
    for file in sorted(folder.glob(f"{name}.[0-9]*")):
        try:
            action, _, key = file.read_text().partition(" ")
            if key and key != work["key"]:
                continue
            file.unlink()
        except FileNotFoundError:
            continue  # another process has used it
        with (folder / "reached").open("a") as reached:
            reached.write(f"{os.getpid()}\n")
        ACTIONS[action](folder / f"{name}.go")
        return


def die(_go: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(_go: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def wait(go: Path) -> None:
    while not go.exists():
        time.sleep(0.01)


ACTIONS: dict[str, Callable[[Path], None]] = {"die": die, "stop": stop, "wait": wait}
