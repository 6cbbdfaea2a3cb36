"""Datasets of this service's own rows, which need no function of the source database.

Exports and documents do not import each other. BUILT_IN_DATASETS names the classes, and the exports app uses them by
this base class.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import IO, Any

from django.conf import settings
from django.utils.module_loading import import_string


class CannotBuild(Exception):
    """The rows do not fit into the format, and another attempt cannot help. The text has no values of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """The format of a file. `compression`: inside a Parquet file; other formats are compressed by the caller."""

    format: str
    compression: str = "none"
    delimiter: str = ","
    bom: bool = False
    escapes_formulas: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltFile:
    """A file without a name, at its beginning. The caller closes it, which deletes it."""

    content: IO[bytes]
    rows: int


class BuiltInDataset(ABC):
    name: str
    description: str  # for the list of datasets to choose from
    scope: str  # that a token also needs, to export the rows and to see such an export
    formats: Sequence[str]
    columns: Sequence[Mapping[str, str]]  # name and type of those that each file has; more follow from the rows

    @property
    @abstractmethod
    def filters(self) -> type[Any]:
        """The serializer of a request's `filters`. Its validated data is JSON, and its context has the `user_id`.

        `dateTo`, if the data has it, is the date of the exported file.
        """

    @abstractmethod
    def key(self, filters: Mapping[str, Any]) -> str:
        """Return the first part of the name of a file with these filters."""

    @abstractmethod
    def build(
        self, filters: Mapping[str, Any], *, user_id: int, layout: FileLayout, checkpoint: Callable[[], None]
    ) -> BuiltFile:
        """Return a file with the user's rows as they are at one point in time. Memory does not grow with the rows.

        `checkpoint` is called every few rows and writes nothing; its exceptions end the work. Raises CannotBuild.
        """


@cache
def all_by_name() -> dict[str, BuiltInDataset]:
    found: list[BuiltInDataset] = [import_string(path)() for path in settings.BUILT_IN_DATASETS]
    return {each.name: each for each in found}


def get(name: str) -> BuiltInDataset:
    return all_by_name()[name]
