"""A whole site, for tests that put an operator's engines in the place of those that all others run on; and workers."""

from tests.chaos.conftest import _notes, chance, pytest_runtest_makereport, site
from tests.e2e.conftest import workers

__all__ = ["_notes", "chance", "pytest_runtest_makereport", "site", "workers"]
