"""Columns of datasets. They are stored at registration, so that requests are validated without the source database."""

from typing import TypedDict

from config.platform.http.problems import Problem
from exports.core.errors import ExportError
from exports.models import Dataset
from exports.source import database
from exports.source.columns import Column


class DatasetColumn(TypedDict):
    name: str
    type: str


class ColumnsUnknown(Problem):
    status = 503
    code = "source_unavailable"
    detail = (
        "The columns of this dataset are not known yet, and the source database did not return them. Try again later."
    )


def as_stored(columns: list[Column]) -> list[DatasetColumn]:
    return [{"name": column.name, "type": column.type} for column in columns]


def columns_of(dataset: Dataset) -> list[DatasetColumn]:
    """Return the columns of the dataset as of its latest registration. Raises ColumnsUnknown.

    If the registration did not store them, for example because the function did not exist yet, this reads them from the
    source database and stores them.
    """
    if dataset.columns is None:
        try:
            dataset.columns = as_stored(database.describe(dataset.schema_and_name))
        except ExportError:
            raise ColumnsUnknown from None
        # Do not overwrite the columns of a concurrent registration.
        Dataset.objects.filter(pk=dataset.pk, function=dataset.function, columns__isnull=True).update(
            columns=dataset.columns
        )
    stored: list[DatasetColumn] = dataset.columns
    return stored
