"""Fixtures for a whole installation, to test it with other brokers, databases, proxies, and workers."""

from tests.chaos.conftest import _change_log, chance, pytest_runtest_makereport, site
from tests.e2e.conftest import workers

__all__ = ["_change_log", "chance", "pytest_runtest_makereport", "site", "workers"]
