"""The periodic tasks: reap, sweep, and purge. Each can be repeated at any time, and several runs can overlap."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore

from config.platform.cleanup import run_steps
from config.platform.db import sql
from config.platform.webhooks import outbox, sender
from exports.jobs import webhook_events
from exports.maintenance import lost_leases, lost_wakeups, retention, storage_cleanup, watermark
from exports.models import Slot
from exports.worker import completion


def reap() -> list[str]:
    """Recover from lost workers and lost messages, delete expired objects, and detect a restored database.

    Runs every EXPORT_REAPER_SECONDS. Return the names of the failed steps, as `sweep` and `purge` do.
    """
    return run_steps(
        provide_slots,
        lost_leases.reclaim_chunks,
        lost_leases.free_slots,
        lost_wakeups.wake_workers,
        completion.fail_exhausted,
        lost_wakeups.wake_completions,
        sender.fail_exhausted,
        webhook_events.wake_for_due,
        storage_cleanup.delete_expired,
        storage_cleanup.abort_lost_uploads,
        watermark.advance,
    )


def sweep() -> list[str]:
    """Delete overdue and orphaned objects, unreferenced files, abandoned uploads, and old events. Runs hourly."""
    return run_steps(
        storage_cleanup.delete_overdue,
        storage_cleanup.delete_orphans,
        storage_cleanup.delete_unreferenced,
        storage_cleanup.abort_abandoned_uploads,
        retention.delete_old_events,
    )


def purge() -> list[str]:
    """Delete old jobs, webhook deliveries, quota usage, and schedule runs, and expired sessions. Runs daily."""
    return run_steps(
        retention.purge_jobs,
        outbox.prune,
        retention.delete_old_usage,
        retention.delete_old_schedule_runs,
        SessionStore.clear_expired,
    )


def provide_slots() -> None:
    Slot.objects.provide(count=settings.SLUICE.export_db_slots)


# The lock of the row allows one run per half interval, even with several schedulers and repeated messages. With a whole
# interval, a run that started late would suppress the next one, which is on time. A time in the future was written
# while the clock was wrong, and is ignored.
TICK = """
INSERT INTO exports_tick (name, ran_at) VALUES (%(name)s, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET ran_at = clock_timestamp()
WHERE exports_tick.ran_at < clock_timestamp() - %(every)s * interval '0.5 second'
   OR exports_tick.ran_at > clock_timestamp()
RETURNING name
"""


def run_if_due(name: str, *, every: float, run: Callable[[], Any]) -> bool:
    """Run a periodic task unless it ran less than half an interval ago. Return whether it ran."""
    is_due = sql.one(TICK, name=name, every=every) is not None
    if is_due:
        run()
    return is_due
