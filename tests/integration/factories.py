"""Rows for tests, created as in the application."""

from datetime import date, timedelta
from typing import Any

from django.contrib.auth.models import User

from exports.core.errors import PermanentSourceError
from exports.core.planning import Pair, Shape
from exports.core.states import Source
from exports.jobs import submission
from exports.models import Dataset, Job
from exports.worker import completion, execution, leases
from exports.worker.leases import Claim
from exports.worker.transitions import ChunkResult
from tests.integration import outcomes

FIRST_DAY = date(2024, 2, 28)


def pairs(count: int, *, key: str = "JFK") -> list[Pair]:
    return [Pair(key, FIRST_DAY + timedelta(days=n)) for n in range(count)]


def make_job(dataset: Dataset, user: User, chunks: int = 3, *, key: str = "JFK", **changes: Any) -> Job:
    """Submit an export of one key, with `chunks` consecutive days from FIRST_DAY."""
    request = submission.ExportRequest(
        **{
            "dataset": dataset,
            "pairs": pairs(chunks, key=key),
            "duplicates": 0,
            "shape": Shape(),
            "delivery": "single" if chunks == 1 else "zip",
            "reuse": "if-present",
            "allow_degraded": True,
            **changes,
        }
    )
    job, _replayed = submission.submit(lambda: request, submission.Caller(user_id=user.pk))
    return job


def result_of(claim: Claim, **changes: Any) -> ChunkResult:
    """Return a plausible result of a claim, for tests that need no file."""
    return ChunkResult(
        **{
            "source": Source.LIVE,
            "etag": f'"{claim.token}"',
            "sha256": f"{claim.token:064x}",
            "rows": 3,
            "bytes": 60,
            "header_bytes": 6,
            "data_as_of": claim.claimed_at,
            "upload_number": claim.token,
            **changes,
        }
    )


def claim_one(*, backend: str) -> Claim | None:
    """Claim the next chunk and a slot. Return None if no chunk is ready or no slot is free."""
    return next(iter(leases.claim_batch(backend=backend, sizes={})), None)


def end_chunk() -> None:
    """Claim and finish the next chunk, without writing a file."""
    claim = claim_one(backend="test")
    assert claim
    outcomes.finish([(claim, result_of(claim))])


def finish(job: Job) -> Job:
    """Run all chunks and the completion, which creates the receipt."""
    execution.drain()
    completion.complete(job.pk)
    job.refresh_from_db()
    assert job.status == "success"
    return job


def fail_chunk() -> None:
    """Fail the next chunk with a permanent error of the source."""
    claim = claim_one(backend="test")
    assert claim
    outcomes.fail(claim, PermanentSourceError("SQLSTATE 42883"), delay=None)
