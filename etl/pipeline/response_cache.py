"""Cache of paid model responses in object storage, so that a stage that runs again does not pay twice."""

from typing import Any

import structlog

from config.platform import storage
from etl.core.stage_context import ignore
from etl.pipeline import artifacts

log = structlog.get_logger(__name__)


class StoredResponseCache:
    """The implementation of `etl.core.stage_context.ResponseCache` for a task. The first entry under a key wins."""

    def __init__(self, owner: artifacts.ArtifactOwner) -> None:
        self._owner = owner

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the entry of this run or of the whole task, with `is_earlier` if an earlier run paid for it.

        Raises StorageError: a failed read is not a cache miss, because paying again is worse than a retry.
        """
        for run in (True, False):
            found = artifacts.find(artifacts.response_key(self._owner, key, run=run))
            if found is not None:
                payer = found.pop("run", self._owner.run)
                return found | ({"is_earlier": True} if payer != self._owner.run else {})
        return None

    def put(self, key: str, entry: dict[str, Any], *, run: bool) -> bool:
        """Store a response. A failure is only logged: the response is paid, so the stage continues with it."""
        try:
            return artifacts.put_once(
                artifacts.response_key(self._owner, key, run=run),
                artifacts.dumped(entry | {"run": self._owner.run}),
                content_type=artifacts.JSON,
                check=ignore,  # also if the lease is lost: the next holder can use the response
            )
        except storage.StorageError as error:
            log.warning("response_not_cached", reason=str(error))
            return False
