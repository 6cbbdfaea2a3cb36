"""Transitions of chunks that also free the slots, as workers do, for tests without a worker."""

from typing import Any

from exports.core.errors import ExportError
from exports.worker import transitions
from exports.worker.leases import Claim
from exports.worker.transitions import ChunkResult, JobProgress


def finish(results: list[tuple[Claim, ChunkResult]]) -> JobProgress | None:
    progress = transitions.finish(results)
    transitions.free_slots([claim.token for claim, _ in results])
    return progress


def fail(claim: Claim, error: ExportError, *, delay: float | None) -> JobProgress | None:
    progress = transitions.fail(claim, error, delay=delay)
    transitions.free_slots([claim.token])
    return progress


def release(claims: list[Claim], **options: Any) -> None:
    transitions.release(claims, **options)
    transitions.free_slots([claim.token for claim in claims])
