"""List filters of documents."""

from config.platform.admin.lists import KnownValues
from etl.core import errors
from etl.core.formats import DocumentFormat
from etl.core.states import BatchStatus, Status
from etl.models.task import STORED


class ByStatus(KnownValues):
    """Filter by status. The others are in Redis: rows stay pending until the end."""

    title = "status"
    parameter_name = "status__exact"
    field = "status"
    options = {str(status): str(status.label) for status in Status if status in STORED}


class ByTaskError(KnownValues):
    """Filter by error code."""

    title = "error"
    parameter_name = "error_code"
    field = "error__code"
    options = {code: code.replace("_", " ") for code in sorted(errors.codes())}


class ByKind(KnownValues):
    """Filter by file format."""

    title = "kind"
    parameter_name = "kind"
    options = {str(kind): str(kind) for kind in DocumentFormat}


class ByBatchStatus(KnownValues):
    """Filter by status."""

    title = "status"
    parameter_name = "status"
    options = {str(status): str(status.label).capitalize() for status in BatchStatus}
