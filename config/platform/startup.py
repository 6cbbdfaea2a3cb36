"""Startup check of web and workers: reject settings that are well-formed but do not work together.

`manage.py check` reports the same errors. Celery runs all checks too, but starts regardless of their results.
"""

from django.core.checks import run_checks

TAG = "settings"  # of checks that need only the settings, and no server


def require_valid_settings() -> None:
    """Raise SystemExit with a line for each error. Django must be set up."""
    errors = [message.msg for message in run_checks(tags=[TAG]) if message.is_serious()]
    if errors:
        raise SystemExit("\n  ".join(["These settings do not work together:", *errors]))
