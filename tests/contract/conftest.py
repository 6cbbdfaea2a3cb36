"""Fixtures for tests with external clients: a real web process with high rate limits and quotas."""

from collections.abc import Iterator

import pytest

from config.dev.stack.processes import Web
from tests.e2e.conftest import workers  # noqa: F401 - a fixture
from tests.serving import serving, variables

RATES = ("EXPORT_RATE", "EXPORT_POLL_RATE", "EXPORT_DOWNLOAD_RATE", "ETL_RATE", "ETL_POLL_RATE")
HIGH_LIMITS = {
    **dict.fromkeys(RATES, "1000000/min"),
    "EXPORT_DAILY_JOBS": "1000000",
    "EXPORT_DAILY_CHUNKS": "100000000",
    "ETL_QUEUE_SIZE": "1000000",
    "ETL_MAX_OPEN_PER_USER": "1000000",
    "ETL_DAILY_DOCUMENTS": "1000000",
    "ETL_DAILY_BYTES": "1000000000000",
    "ETL_DAILY_RULE_VERSIONS": "1000000",
    "ETL_DAILY_RULE_TESTS": "1000000",
    "EXPORT_WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",  # webhook URLs of tests have loopback addresses
}


@pytest.fixture(scope="session")
def served(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The web process of all tests in this folder, with the test database."""
    root = tmp_path_factory.mktemp("web")
    with serving(root, variables(root, **HIGH_LIMITS)) as running:
        yield running
