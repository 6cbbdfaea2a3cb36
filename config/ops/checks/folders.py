"""System checks of the folders of this host or container; run them where the other processes run, too."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning

from config.platform import startup
from config.platform.observability import counters

MIB = 1024**2
LOW_SPACE = 1024 * MIB
COUNTERS_BYTES = MIB  # per process; it needs about 50 KB


@register(deploy=True)
def check_temporary_folder(**_kwargs: Any) -> list[CheckMessage]:
    """Check TMPDIR, which holds each upload twice while it is received, and the parts of large objects.

    Checks the folder that the variable names, even if Python uses another one.
    """
    needed = 2 * settings.SLUICE.etl_max_file_bytes
    folder = Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
    messages = check_folder(folder, "TMPDIR", needed=needed, low=LOW_SPACE)
    unusable = startup.unusable_temporary_folder()
    if unusable and not any(message.is_serious() for message in messages):
        hint = "Create the folder and make it writable, or free up space: docs/runbook.md#disk-is-full. Then restart."
        return [Error(unusable, hint=hint, id="ops.E203")]
    return messages


@register(deploy=True)
def check_cache_folder(**_kwargs: Any) -> list[CheckMessage]:
    """Check ETL_CACHE_DIR. This only warns, because only OCR workers use it."""
    needed = 2 * settings.SLUICE.etl_max_file_bytes
    messages = check_folder(settings.SLUICE.etl_cache_dir, "ETL_CACHE_DIR", needed=needed, low=LOW_SPACE)
    note = "Only OCR workers use it: with containers, run this check in theirs."
    return [
        CheckWarning(each.msg, hint=f"{each.hint} {note}", id="ops.W203") if each.is_serious() else each
        for each in messages
    ]


@register(deploy=True)
def check_metrics_folder(**_kwargs: Any) -> list[CheckMessage]:
    if folder := os.environ.get(counters.VARIABLE):
        return check_folder(Path(folder), counters.VARIABLE, needed=COUNTERS_BYTES, low=8 * COUNTERS_BYTES)
    message = f"{counters.VARIABLE} is not set: /metrics covers one web process and no workers."
    hint = f"Set {counters.VARIABLE} to a folder that web and workers share: docs/runbook.md#metrics-are-missing."
    return [CheckWarning(message, hint=hint, id="ops.W202")]


def check_folder(folder: Path, variable: str, *, needed: int, low: int) -> list[CheckMessage]:
    # `Path.exists` raises PermissionError for a folder inside a folder that may not be opened.
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))  # noqa: PTH110
    free = shutil.disk_usage(existing).free
    if free < needed:  # first: a file cannot be written to a full disk either
        message = f"{variable} has {free // MIB} MiB of free space; {needed // MIB} MiB are needed."
        return [Error(message, hint="Free up space: docs/runbook.md#disk-is-full.", id="ops.E202")]
    try:
        with tempfile.TemporaryFile(dir=existing) as file:  # unnamed: leaves nothing behind if the process is killed
            file.write(b"x")
    except OSError:
        hint = f"Fix its permissions, or set {variable} to another folder; in containers, to a volume."
        return [Error(f"{variable} is a folder that cannot be written to.", hint=hint, id="ops.E201")]
    if free < low:
        message = f"{variable} has only {free // MIB} MiB of free space."
        hint = "Free up space before it is full: docs/runbook.md#disk-is-full."
        return [CheckWarning(message, hint=hint, id="ops.W201")]
    return []
