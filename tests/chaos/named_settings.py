"""Settings of processes that resolve names by the test's scripted DNS."""

from tests.chaos import names
from tests.chaos.settings import *  # noqa: F403

names.install()
