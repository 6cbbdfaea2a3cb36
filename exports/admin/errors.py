"""Explanations of error codes for staff."""

from exports.core.errors import EXPLANATIONS


def title_of(code: str) -> str:
    return EXPLANATIONS.get(code, (code, ""))[0]


# Explanations for staff, of codes whose explanation for clients is to contact staff.
FOR_STAFF = {
    "EXPORT_SOURCE_TIMEOUT": "Every attempt exceeded the dataset's statement timeout. Raise the timeout, or check in "
    "the source database what the function waits for.",
    "EXPORT_SOURCE_ERROR": "The dataset's function failed for this key and date. The page of a failed chunk shows the "
    "message of the source database. It may quote rows, so opening it is recorded in the audit log. The log of the "
    "source database contains the statement.",
    "EXPORT_WORKER_LOST": "The worker was lost in every attempt. Check the workers' log for the event lease_expired: "
    "it contains the chunk, the attempt, and the host and process of the worker (in backend). Workers that disappear "
    "without a log entry were often killed because they ran out of memory.",
}


def advice_on(code: str) -> str:
    return FOR_STAFF.get(code) or EXPLANATIONS.get(code, ("", ""))[1]
