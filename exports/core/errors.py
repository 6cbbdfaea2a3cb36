"""What can go wrong with a chunk or a job. Each error knows its code and whether another attempt can help.

Clients and logs see the code, the SQLSTATE and the sentences below; never the source's own message, which may
quote rows.
"""


class ExportError(Exception):
    """The export failed."""

    code = "EXPORT_SOURCE_ERROR"
    retryable = True

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.__doc__)
        self.detail = detail


class SourceFailed(ExportError):
    """The source database did not give the rows. An older file may stand in for them."""


class SourceUnavailable(SourceFailed):
    """The source database could not be reached, or it shut the connection down."""

    code = "EXPORT_SOURCE_UNAVAILABLE"


class SourceFull(SourceUnavailable):
    """The source database has no room for one more connection. That is no chunk's fault: its turn comes again."""


class SourcePooled(SourceUnavailable):
    """What answers took none of our session's settings: a pooler, which would give our session to others, too."""


class SourceTimeout(SourceFailed):
    """The dataset's function ran longer than its statement timeout."""

    code = "EXPORT_SOURCE_TIMEOUT"


class SourceError(SourceFailed):
    """The dataset's function raised an error."""

    code = "EXPORT_SOURCE_ERROR"


class SourceRefused(SourceError):
    """The dataset's function is missing, is not allowed, or does not fit: another attempt cannot help."""

    retryable = False


class UploadFailed(ExportError):
    """The object store did not take the file, also at the second try."""

    code = "EXPORT_UPLOAD_FAILED"
    retryable = False  # the one immediate retry was made; only a person's retry starts again


class UploadOvertaken(UploadFailed):
    """Other workers replaced the object at this path each time before we could."""

    retryable = True


class WorkerLost(ExportError):
    """Workers died or stalled each time they worked on this chunk."""

    code = "EXPORT_WORKER_LOST"


class WorkerFailed(WorkerLost):
    """A worker ran into its time limit, or into something that nobody thought of."""


class FileGone(Exception):
    """The object at a chunk's path is not the one that the chunk ended with: it was replaced or deleted."""


class LeaseLost(Exception):
    """The lease is no longer ours: another worker has the chunk, or it was cancelled. Nothing may be written."""


# SQLSTATE classes that another attempt cannot heal: syntax error, missing object or privilege, invalid schema, invalid
# authorisation, feature not supported.
PERMANENT = ("42", "3F", "28", "0A")

# code -> (title, what it means and what to do). The API, the pages and the admin all show these.
EXPLANATIONS: dict[str, tuple[str, str]] = {
    "EXPORT_SOURCE_UNAVAILABLE": (
        "The source database could not be reached",
        "It was down or refused connections at every attempt. Retry the export when the database is back.",
    ),
    "EXPORT_SOURCE_TIMEOUT": (
        "The source database took too long",
        "It ran into the dataset's statement timeout at every attempt. Ask the staff to raise it, or retry later.",
    ),
    "EXPORT_SOURCE_ERROR": (
        "The source database raised an error",
        "The dataset's function failed for this key and date. The SQLSTATE tells the staff what kind of error it was.",
    ),
    "EXPORT_UPLOAD_FAILED": (
        "The object store did not take the file",
        "The upload failed and so did its immediate retry. Nothing was written. Retry the failed chunks.",
    ),
    "EXPORT_WORKER_LOST": (
        "Workers died or failed while they worked on this",
        "No attempt ended with an outcome of its own. Ask the staff to look at this key and date first.",
    ),
    "EXPORT_BUNDLE_FAILED": (
        "The delivery could not be put together",
        "Every file is there, but the delivered object could not be made. Retry the export: finished files are kept.",
    ),
}


def explain(code: str, detail: str) -> dict[str, object]:
    """Return an error as clients see it. `retryable`: the same may well succeed when a person retries it."""
    title, explanation = EXPLANATIONS.get(code, (code, ""))
    return {
        "code": code,
        "title": title,
        "detail": f"{explanation} ({detail})" if detail else explanation,
        "retryable": not detail.startswith(tuple(f"SQLSTATE {code}" for code in PERMANENT)),
    }
