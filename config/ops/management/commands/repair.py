"""`python manage.py repair ACTION [ID …]`: the operator's actions of docs/runbook.md.

They call the same functions as the periodic tasks, the API, and the admin. Each is safe to repeat and to run
while web and workers run.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from knox.models import AuthToken

from config.platform import storage
from config.platform.http.problems import Problem
from config.platform.plurals import counted
from config.platform.webhooks import subscriptions
from etl import runstate
from etl.maintenance import cleanup as etl_sweeper
from etl.maintenance import manual as etl_repair
from etl.maintenance import recovery
from etl.models import Task
from exports.admin.staff_actions import cancel_job, free_slot, release_chunk, retry_job
from exports.delivery import links, receipts
from exports.maintenance import periodic, storage_cleanup
from exports.models import Chunk, Job, Link, Receipt, Slot, Webhook

log = structlog.get_logger(__name__)


# ---- Periodic tasks that can be run now -----------------------------------------------------------------------------
def reap() -> str:
    failed = periodic.reap()
    try:
        recovery.recover_all()
    except runstate.Unavailable:
        raise CommandError("Documents were not recovered: the Redis of their run-states does not respond.") from None
    check(failed)
    return "Released expired leases, and sent wake-up messages for waiting work if the broker responds."


def sweep() -> str:
    check(periodic.sweep() + etl_sweeper.sweep())
    return "Deleted unreferenced objects and uploads, and old events."


def purge() -> str:
    check(periodic.purge())
    return "Deleted jobs that ended more than EXPORT_JOB_RETENTION_DAYS ago."


def check(failed: list[str]) -> None:
    if failed:
        raise CommandError(f"Failed: {', '.join(failed)}. See `cleanup_step_failed` in the log above for the reason.")


# ---- Actions on rows ------------------------------------------------------------------------------------------------
def revoke_links(receipt: Receipt) -> str:
    """Revoke the open links, not the receipt: its owner may create another link."""
    for link in Link.objects.filter(receipt=receipt, used_at=None, revoked_at=None):
        links.revoke(link)
    return "Revoked its links. Its owner can create another."


def withdraw(receipt: Receipt) -> str:
    """Revoke the receipt and delete its object now, so that presigned URLs stop working."""
    receipts.revoke(receipt)
    try:
        storage_cleanup.delete_revoked(receipt)
    except storage.StorageError:
        raise Problem("Revoked, but object storage does not respond: `reap` will delete the object later.") from None
    return "Revoked, and its object is deleted."


def redeliver(webhook: Webhook) -> str:
    subscriptions.change(webhook, enabled=True)
    return f"Enabled. {subscriptions.redeliver_failed(webhook)} failed deliveries will be sent again."


def revoke_tokens(user: User) -> str:
    _, deleted = AuthToken.objects.filter(user=user).delete()
    return f"Revoked {counted(deleted.get(AuthToken._meta.label, 0), 'token')}."


class RepairAction(NamedTuple):
    """An action on rows of `model`, which are selected by `column`."""

    help: str
    run: Callable[[Any], str]
    model: type[Any]
    column: str = "pk"


PERIODIC: dict[str, tuple[str, Callable[[], str]]] = {
    "reap": ("release expired leases and resend lost wake-up messages now", reap),
    "sweep": ("delete unreferenced objects, uploads and old events now", sweep),
    "purge": ("delete jobs older than EXPORT_JOB_RETENTION_DAYS now", purge),
}
ACTIONS = {
    "cancel": RepairAction("cancel jobs", cancel_job, Job),
    "retry": RepairAction("restart the failed chunks of failed jobs", retry_job, Job),
    "release": RepairAction("release running chunks from their workers", release_chunk, Chunk),
    "free": RepairAction("free slots of lost workers once their source call has ended", free_slot, Slot),
    "revoke-links": RepairAction("revoke the open links of jobs", revoke_links, Receipt),
    "withdraw": RepairAction("revoke the receipts of jobs and delete their objects", withdraw, Receipt),
    "wake": RepairAction(
        "send the wake-up messages of documents again and rebuild lost run-states", etl_repair.wake, Task
    ),
    "redeliver": RepairAction("enable webhooks and send failed deliveries again", redeliver, Webhook),
    "revoke-tokens": RepairAction("revoke all API tokens of users", revoke_tokens, User, "username"),
}


class Command(BaseCommand):
    help = (
        "Runs one action of docs/runbook.md. Exit status 1: at least one item was left unchanged, for the reason shown."
    )
    requires_system_checks = ()  # a warning from an unrelated check must not block a repair

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="name", metavar="ACTION", required=True)
        for name, (text, _) in PERIODIC.items():
            actions.add_parser(name, help=text)
        for name, action in ACTIONS.items():
            metavar = "ID" if action.column == "pk" else action.column.upper()
            actions.add_parser(name, help=action.help).add_argument("ids", nargs="+", metavar=metavar)

    def handle(self, *, name: str, ids: list[str] | None = None, **_kwargs: Any) -> None:
        if name in PERIODIC:
            log.info("repaired", verb=name)
            self.stdout.write(PERIODIC[name][1]())
            return
        unchanged = sum(not self.run_action(name, each) for each in ids or [])
        if unchanged:
            raise CommandError(f"{unchanged} not changed.")

    def run_action(self, name: str, id_: str) -> bool:
        """Run an action on one row and print the result. Return whether it succeeded."""
        action = ACTIONS[name]
        try:
            result = action.run(action.model.objects.get(**{action.column: id_}))
        except Problem as problem:
            self.stderr.write(f"{id_}: {problem.detail}")
            return False
        except (action.model.DoesNotExist, ValidationError, ValueError):
            self.stderr.write(f"{id_}: Not found.")
            return False
        # User names are personal data and are not logged.
        log.info("repaired", verb=name, id="" if action.column == "username" else id_)
        self.stdout.write(f"{id_}: {result}")
        return True
