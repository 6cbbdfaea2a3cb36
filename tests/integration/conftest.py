"""Fixtures of the integration tests."""

from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings

from tests.broker import lose_messages
from tests.integration.etl_rehearsal import Change
from tests.integration.staff import delivered, failed, pages, staff  # noqa: F401 - fixtures


@pytest.fixture
def rehearsed(settings: LazySettings, tmp_path: Path) -> Change:
    """The rehearsed provider and processor, an empty broker, short waits; and a way to change more settings."""

    def change(**values: Any) -> None:
        settings.SLUICE = settings.SLUICE.model_copy(update=values)

    lose_messages()
    change(
        etl_ocr_provider="tests.rehearsal.Provider",
        etl_cache_dir=tmp_path,
        etl_lease_seconds=3,
        etl_retry_backoff_base_seconds=0.2,
        etl_retry_backoff_max_seconds=0.2,
    )
    settings.ETL_POSTPROCESSORS = {**settings.ETL_POSTPROCESSORS, "llm": "tests.rehearsal.Processor"}
    return change
