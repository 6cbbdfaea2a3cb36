"""The settings of processes that ask a test for addresses, and not the machine's DNS."""

from tests.chaos import names
from tests.chaos.settings import *  # noqa: F403

names.install()
