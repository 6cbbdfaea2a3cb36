"""The command that makes and changes datasets. A8."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from etl.pipeline import artifacts
from exports.models import Dataset
from exports.models.dataset import RESERVED


def register(path: str) -> str:
    out = StringIO()
    call_command("register_dataset", "flights", "--function", "data.rows_for", "--base-path", path, stdout=out)
    return out.getvalue()


@pytest.mark.parametrize("path", ["rb/x", "rb/x/", "rb/x//"])
def test_a_base_path_may_have_trailing_slashes(dataset: Dataset, path: str) -> None:
    """A8."""
    assert register(path) == "dataset flights: data.rows_for to rb/x/\n"
    assert Dataset.objects.get(name="flights").base_path == "rb/x"


@pytest.mark.parametrize("path", ["etl", "etl/", "etl/uploads", "etl/exports", "ETL", "Etl/uploads"])
def test_the_folder_of_documents_is_reserved(dataset: Dataset, path: str) -> None:
    """The cleanup of documents deletes old objects there."""
    with pytest.raises(CommandError, match="reserved"):
        register(path)
    assert not Dataset.objects.filter(name="flights").exists()


def test_documents_are_stored_only_below_the_reserved_folder(dataset: Dataset) -> None:
    for prefix in (artifacts.DOCUMENTS, artifacts.UPLOADS, artifacts.TASKS):
        assert prefix.startswith(f"{RESERVED}/")
    assert "etl2/" in register("etl2")


@pytest.mark.parametrize("path", ["", "/", "/rb/x", "rb//x/", "rb/../x", "rb/x ", "rb/x/ "])
def test_invalid_base_paths_are_refused(dataset: Dataset, path: str) -> None:
    with pytest.raises(CommandError, match="base_path"):
        register(path)
    assert not Dataset.objects.filter(name="flights").exists()
