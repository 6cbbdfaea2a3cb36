"""Datasets built from Sluice's own rows, without a function in the source database.

Exports and documents do not import each other. The setting BUILT_IN_DATASETS names the classes, and the exports app
uses them through this base class.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import IO, Any

from django.conf import settings
from django.utils.module_loading import import_string


class CannotBuild(Exception):
    """The format cannot hold the rows, so a retry would fail too. The message contains no values of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """The format of a file. `compression` applies inside Parquet files; the caller compresses other formats."""

    format: str
    compression: str = "none"
    delimiter: str = ","
    bom: bool = False
    escapes_formulas: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltFile:
    """An anonymous temporary file, positioned at its start. The caller closes it, which deletes it."""

    content: IO[bytes]
    rows: int


class BuiltInDataset(ABC):
    name: str
    description: str  # for the list of datasets to choose from
    scope: str  # additional token scope, required to export the rows and to view these exports
    formats: Sequence[str]
    columns: Sequence[Mapping[str, str]]  # name and type of the columns in every file; the rows determine further ones

    @property
    @abstractmethod
    def filters(self) -> type[Any]:
        """The serializer of a request's `filters`. Its validated data is JSON, and its context has the `user_id`.

        If the data contains `dateTo`, it is the date of the exported file.
        """

    @abstractmethod
    def key(self, filters: Mapping[str, Any]) -> str:
        """Return the key for these filters. The name of the file starts with it."""

    @abstractmethod
    def build(
        self, filters: Mapping[str, Any], *, user_id: int, layout: FileLayout, checkpoint: Callable[[], None]
    ) -> BuiltFile:
        """Return a file with a consistent snapshot of the user's rows, built in constant memory. Raises CannotBuild.

        `checkpoint` is called every few rows. It writes nothing, and raises an exception to stop the work.
        """


@cache
def all_by_name() -> dict[str, BuiltInDataset]:
    found: list[BuiltInDataset] = [import_string(path)() for path in settings.BUILT_IN_DATASETS]
    return {each.name: each for each in found}


def get(name: str) -> BuiltInDataset:
    return all_by_name()[name]
