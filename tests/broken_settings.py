"""The settings of processes in tests that have to break."""

from config.settings import *  # noqa: F403

ROOT_URLCONF = "tests.broken"
CELERY_IMPORTS = ["tests.broken"]
