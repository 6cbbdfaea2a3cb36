"""What web and workers do before anything else: refuse settings that are well-formed and do not fit.

`manage.py check` says the same. Celery runs all checks too, and goes on whatever they say.
"""

from django.core.checks import run_checks

TAG = "settings"  # of checks that need nothing but the settings: no database, no other server


def insist_on_settings() -> None:
    """Raises SystemExit, whose words have a line for each setting that does not fit. Django must be set up."""
    wrong = [message.msg for message in run_checks(tags=[TAG]) if message.is_serious()]
    if wrong:
        raise SystemExit("\n  ".join(["These settings do not fit:", *wrong]))
