"""Cleanup steps that run even if an earlier step fails."""

from collections.abc import Callable

import structlog

from config.platform.observability.metrics import CAUGHT

log = structlog.get_logger(__name__)


def run_steps(*steps: Callable[[], object]) -> list[str]:
    """Run the steps in order. Return the names of those that failed; their errors are logged."""
    failed = []
    for step in steps:
        try:
            step()
        except Exception:
            CAUGHT.labels("cleanup").inc()
            log.exception("cleanup_step_failed", step=step.__name__)
            failed.append(step.__name__)
    return failed
