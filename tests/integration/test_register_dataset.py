"""The command that makes and changes datasets. A8."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from exports.models import Dataset


def register(path: str) -> str:
    out = StringIO()
    call_command("register_dataset", "flights", "--function", "data.rows_for", "--base-path", path, stdout=out)
    return out.getvalue()


@pytest.mark.parametrize("path", ["rb/x", "rb/x/", "rb/x//"])
def test_a_base_path_may_have_trailing_slashes(dataset: Dataset, path: str) -> None:
    """A8."""
    assert register(path) == "dataset flights: data.rows_for to rb/x/\n"
    assert Dataset.objects.get(name="flights").base_path == "rb/x"


@pytest.mark.parametrize("path", ["", "/", "/rb/x", "rb//x/", "rb/../x", "rb/x ", "rb/x/ "])
def test_invalid_base_paths_are_refused(dataset: Dataset, path: str) -> None:
    with pytest.raises(CommandError, match="base_path"):
        register(path)
    assert not Dataset.objects.filter(name="flights").exists()
