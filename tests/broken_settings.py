"""Settings of processes with the failing view and tasks of `tests/broken.py`."""

from config.settings import *  # noqa: F403

ROOT_URLCONF = "tests.broken"
CELERY_IMPORTS = ["tests.broken"]
