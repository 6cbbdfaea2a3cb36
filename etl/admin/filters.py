"""List filters of documents."""

from config.platform.admin.lists import KnownValues
from etl.core import errors
from etl.core.formats import DocumentFormat


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
