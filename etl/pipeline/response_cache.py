"""The journal of paid answers, in object storage: a stage that is run again does not pay for them twice."""

from typing import Any

import structlog

from config.platform import storage
from etl.pipeline import artifacts

log = structlog.get_logger(__name__)


class StoredResponseCache:
    """`etl.core.stage_context.ResponseCache` for one task. The first answer stored under a key wins."""

    def __init__(self, owner: artifacts.ArtifactOwner) -> None:
        self._owner = owner

    def get(self, key: str) -> dict[str, Any] | None:
        """Return what was kept under this key, in this run or for the whole task. Raises StorageError: not to know is
        no reason to pay again."""
        for run in (True, False):
            found = artifacts.find(artifacts.response_key(self._owner, key, run=run))
            if found is not None:
                return found
        return None

    def put(self, key: str, entry: dict[str, Any], *, run: bool) -> None:
        """Keep an answer. Where that fails the work goes on with it: it is there, and was paid."""
        try:
            artifacts.put_once(
                artifacts.response_key(self._owner, key, run=run),
                artifacts.dumped(entry),
                content_type=artifacts.JSON,
                check=unchecked,
            )
        except storage.StorageError as error:
            log.warning("answer_not_kept", reason=str(error))


def unchecked() -> None:
    """An answer is kept also by whoever has lost the lease: the next one will want it."""
