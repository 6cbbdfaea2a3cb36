"""What error codes mean to the staff: as to clients, but for those that send clients to the staff."""

from exports.core.errors import EXPLANATIONS


def title_of(code: str) -> str:
    return EXPLANATIONS.get(code, (code, ""))[0]


# Where clients are sent to the staff: what the staff can look at.
FOR_STAFF = {
    "EXPORT_SOURCE_TIMEOUT": "It ran into the dataset's statement timeout at every attempt. Raise that, or look in the "
    "source database at what the function waits for.",
    "EXPORT_SOURCE_ERROR": "The dataset's function failed for this key and date. Look for the SQLSTATE in the source "
    "database's log at the time of the attempt; its message is not kept here, as it may quote rows.",
    "EXPORT_WORKER_LOST": "No attempt ended with an outcome of its own. Look at the workers' log at that time: "
    "lease_expired names this chunk, the attempt, and host and process of the worker (in backend). Workers that end "
    "without a word were often killed for want of memory.",
}


def advice_on(code: str) -> str:
    return FOR_STAFF.get(code) or EXPLANATIONS.get(code, ("", ""))[1]
