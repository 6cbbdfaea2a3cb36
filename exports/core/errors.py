"""Errors of chunks and jobs. Each has a code, and `retryable`: whether another attempt can help.

Clients and logs see the code, the detail (such as an SQLSTATE), and the explanations below. The message of the source
database may quote rows: it is stored with the chunk and never logged. Staff can read it, and owners if the dataset
shows errors.
"""

import re

from psycopg import errors as sqlstates


class ExportError(Exception):
    code: str
    retryable = True
    backoff_factor = 1  # multiplies the pauses between attempts

    def __init__(self, detail: str = "", *, message: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.message = message  # from the source database


class SourceFailed(ExportError):
    """The source database did not return the rows. Only these errors let a dataset fall back to an older file."""


class SourceUnavailable(SourceFailed):
    """The source database could not be reached, or it closed the connection."""

    code = "EXPORT_SOURCE_UNAVAILABLE"


class SourceConnectionsExhausted(SourceUnavailable):
    """The source database has no free connection. The chunk waits for its next turn and loses no attempt."""


class SourceBehindPooler(SourceUnavailable):
    """The source connection ignores session settings.

    So it goes through a connection pooler that shares the session with other clients.
    """


class SourceTimeout(SourceFailed):
    """The dataset's function exceeded its statement timeout."""

    code = "EXPORT_SOURCE_TIMEOUT"


class SourceError(SourceFailed):
    """The dataset's function raised an error."""

    code = "EXPORT_SOURCE_ERROR"


class SourceCancelled(SourceError):
    """An administrator of the source database cancelled the call."""


class SourceConflict(SourceError):
    """The source database ended the call in favor of replication or of another transaction.

    Replication usually continues for a while, so attempts in quick succession have the same conflict.
    """

    backoff_factor = 8


class RowTooLarge(SourceError):
    """The dataset's function returned a row that is larger than EXPORT_MAX_ROW_BYTES."""

    retryable = False


class ValueNotRepresentable(SourceError):
    """The dataset's function returned a value that the requested format cannot represent."""

    retryable = False


class RowsNotRepresentable(SourceError):
    """The rows of a built-in dataset do not fit together into one file of the requested format."""

    retryable = False


class PermanentSourceError(SourceError):
    """The dataset's function is missing, not permitted or incompatible. Another attempt cannot help."""

    retryable = False


class NoColumns(PermanentSourceError):
    """The dataset's function returns a table without columns, which has no valid file in most formats."""

    def __init__(self) -> None:
        super().__init__("the function returns no columns")


class ChunkUploadFailed(ExportError):
    """The object storage did not accept the file, and the immediate retry failed too."""

    code = "EXPORT_UPLOAD_FAILED"
    retryable = False  # the immediate retry was made; only a manual retry can help


class StorageRefused(ChunkUploadFailed):
    """The object storage cannot be reached, or it refuses writes.

    For EXPORT_STORAGE_PATIENCE_SECONDS, this does not count as an attempt.
    """

    retryable = True


class UploadConflict(ChunkUploadFailed):
    """Other workers replaced the object at this path before each attempt to write it."""

    retryable = True


class UploadDiscarded(ChunkUploadFailed):
    """The object storage no longer had the upload, or the object that it replaces. A new upload may succeed."""

    retryable = True


class WorkerLost(ExportError):
    """Workers crashed or stalled in every attempt on this chunk."""

    code = "EXPORT_WORKER_LOST"


class WorkerFailed(WorkerLost):
    """A worker reached its time limit or hit an unexpected error."""


class FileGone(Exception):
    """The object at a chunk's path is not the chunk's result: it was replaced or deleted."""


# SQLSTATE classes for which another attempt cannot help: syntax error, missing object or privilege, invalid schema,
# invalid authorization, feature not supported. 25006 is a write in a read-only transaction. 22021 and 22P05 are bytes
# or characters that an encoding does not have: the same rows have them at every attempt.
PERMANENT = ("42", "3F", "28", "0A", "25006", "22021", "22P05")
# Prefixes of the details of permanent errors, which are recognized by the stored detail.
PERMANENT_DETAILS = (
    *(f"SQLSTATE {code}" for code in PERMANENT),
    "a row has ",
    "an escaped column name is longer ",
    "two columns have ",
    "the function returns no ",
    "column ",
    "the files have different columns",
    "The results have more than ",
)

# By code: the title, and a text with the meaning and the next step. The API, the pages, and the admin show these.
EXPLANATIONS: dict[str, tuple[str, str]] = {
    "EXPORT_SOURCE_UNAVAILABLE": (
        "The source database could not be reached",
        "It was down or refused connections at every attempt. Retry the export when the database is available again.",
    ),
    "EXPORT_SOURCE_TIMEOUT": (
        "The source database took too long",
        "Every attempt exceeded the dataset's statement timeout. Ask staff to raise it, or retry later.",
    ),
    "EXPORT_SOURCE_ERROR": (
        "The source database raised an error",
        "The dataset's function failed for this key and date. Staff can see the message of the database.",
    ),
    "EXPORT_UPLOAD_FAILED": (
        "The object storage did not accept the file",
        "It was down, refused writes, or rejected this file. Nothing was written. Retry the failed chunks later.",
    ),
    "EXPORT_WORKER_LOST": (
        "Workers crashed or failed on this chunk",
        "No attempt finished. Ask staff to check this key and date before you retry.",
    ),
    "EXPORT_BUNDLE_FAILED": (
        "The delivered file could not be created",
        "All chunk files exist and are kept. A retry of the export only creates the delivered file again.",
    ),
}


SQLSTATE = re.compile(r"SQLSTATE (\w{5})$")
# Other codes have the name of their condition in Postgres, such as "division by zero".
MEANINGS = {
    "P0001": "raised by the function",
    "25006": "write in a read-only transaction",
    "57014": "cancelled",
}


def with_meaning(detail: str) -> str:
    """Return a detail with the meaning of its SQLSTATE, if Postgres defines it."""
    found = SQLSTATE.match(detail)
    meaning = meaning_of(found[1]) if found else ""
    return f"{detail}: {meaning}" if meaning else detail


def meaning_of(sqlstate: str) -> str:
    """Return the meaning of an SQLSTATE, or "" for one that Postgres does not define."""
    try:
        condition = sqlstates.lookup(sqlstate).__name__
    except KeyError:
        return ""
    return MEANINGS.get(sqlstate) or re.sub("(?<=[a-z])(?=[A-Z])", " ", condition).lower()


def explain(code: str, detail: str) -> dict[str, object]:
    """Return an error in the form that clients see. `retryable`: whether a manual retry may succeed."""
    title, explanation = EXPLANATIONS.get(code, (code, ""))
    return {
        "code": code,
        "title": title,
        "detail": f"{explanation} ({with_meaning(detail)})" if detail else explanation,
        "retryable": not detail.startswith(PERMANENT_DETAILS),
    }
