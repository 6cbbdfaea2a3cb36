"""Cache of paid model responses in object storage, so that a stage that runs again does not pay twice."""

from typing import Any

import structlog

from config.platform import storage
from etl.pipeline import artifacts

log = structlog.get_logger(__name__)


class StoredResponseCache:
    """`etl.core.stage_context.ResponseCache` for one task. The first entry under a key wins."""

    def __init__(self, owner: artifacts.ArtifactOwner) -> None:
        self._owner = owner

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the entry of this run or of the whole task.

        Raises StorageError: a failed read is not a cache miss, as paying again is worse than a retry.
        """
        for run in (True, False):
            found = artifacts.find(artifacts.response_key(self._owner, key, run=run))
            if found is not None:
                return found
        return None

    def put(self, key: str, entry: dict[str, Any], *, run: bool) -> None:
        """Store a response. A failure is only logged: the response is paid, so the stage continues with it."""
        try:
            artifacts.put_once(
                artifacts.response_key(self._owner, key, run=run),
                artifacts.dumped(entry),
                content_type=artifacts.JSON,
                check=no_check,
            )
        except storage.StorageError as error:
            log.warning("answer_not_kept", reason=str(error))


def no_check() -> None:
    """Store the response even if the lease is lost: the next holder can use it."""
