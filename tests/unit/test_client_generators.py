"""Changes to the OpenAPI schema for client generators."""

import pytest

from config.platform.http.openapi.client_generators import format_default


@pytest.mark.parametrize(
    ("default", "text"),
    [(1, "`1`"), (0, "`0`"), (True, "`true`"), (False, "`false`"), ("", "empty"), ("csv", "`csv`"), ([], "`[]`")],
)
def test_defaults_are_described(default: object, text: str) -> None:
    assert format_default(default) == text
