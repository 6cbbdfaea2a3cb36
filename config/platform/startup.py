"""Startup check of web processes and workers. It rejects well-formed settings that do not work, alone or together.

`manage.py check` reports the same errors.
"""

import os
import tempfile
from pathlib import Path

from django.core.checks import run_checks

TAG = "settings"  # of checks that need only the settings, and no server


def require_valid_settings() -> None:
    """Raise SystemExit with a line for each error. Django must be set up."""
    errors = [message.msg for message in run_checks(tags=[TAG]) if message.is_serious()]
    errors += filter(None, [unusable_temporary_folder()])
    if errors:
        raise SystemExit("\n  ".join(["These settings do not work:", *errors]))


def unusable_temporary_folder() -> str:
    """Return an error message if TMPDIR names a folder that Python does not use, or "".

    Python writes a test file, and silently uses another folder if that fails. Uploads would fill /tmp, which
    may be in memory.
    """
    configured = os.environ.get("TMPDIR")
    if not configured:
        return ""
    try:
        used = tempfile.gettempdir()
    except OSError:
        used = "no other folder"
    if Path(used).resolve() == Path(configured).resolve():
        return ""
    return (
        f"TMPDIR is {configured}, where no file can be written: the folder is full, missing, or read-only. "
        f"Python would use {used}."
    )
