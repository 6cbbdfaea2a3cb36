"""Explanations of error codes for staff, where those for clients refer to the staff."""

from exports.core.errors import EXPLANATIONS


def title_of(code: str) -> str:
    return EXPLANATIONS.get(code, (code, ""))[0]


FOR_STAFF = {
    "EXPORT_SOURCE_TIMEOUT": "Every attempt exceeded the dataset's statement timeout. Raise the timeout, or check in "
    "the source database for locks on which the function waits.",
    "EXPORT_SOURCE_ERROR": "The dataset's function failed for this key and date. Look for the SQLSTATE in the source "
    "database's log at the time of the attempt. The message is not stored here because it may quote rows.",
    "EXPORT_WORKER_LOST": "No attempt finished. Check the workers' log at that time: lease_expired names this chunk, "
    "the attempt, and the worker's host and process (in backend). A worker that stops without a log line was often "
    "killed because it ran out of memory.",
}


def advice_on(code: str) -> str:
    return FOR_STAFF.get(code) or EXPLANATIONS.get(code, ("", ""))[1]
