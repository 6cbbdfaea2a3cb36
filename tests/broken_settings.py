"""Settings of processes that fail on purpose."""

from config.settings import *  # noqa: F403

ROOT_URLCONF = "tests.broken"
CELERY_IMPORTS = ["tests.broken"]
