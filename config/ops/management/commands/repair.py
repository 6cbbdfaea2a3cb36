"""`python manage.py repair VERB [ID …]`: what docs/runbook.md has an operator do.

It calls the functions that janitors, the API and the staff's pages call. Each is safe to repeat, while everything runs.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

import structlog
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db.models import Model, QuerySet
from knox.models import AuthToken

from config.platform import storage
from config.platform.http.problems import Problem
from etl import runstate
from etl.maintenance import cleanup as etl_sweeper
from etl.maintenance import manual as etl_repair
from etl.maintenance import recovery
from etl.models import Task
from exports.delivery import links, receipts
from exports.jobs import actions
from exports.maintenance import manual_actions, periodic, storage_cleanup
from exports.models import Chunk, Job, Link, Receipt, Slot, Webhook
from exports.webhooks import subscriptions

log = structlog.get_logger(__name__)


# ---- Of everything: what beat would have done by now ----------------------------------------------------------------
def reap() -> str:
    failed = periodic.reap()
    try:
        recovery.look()
    except runstate.Unavailable:
        raise CommandError("Documents wait on: the Redis of their run-states does not answer.") from None
    check(failed)
    return "What was lost is taken back, and workers are woken for what waits, as far as the broker answers."


def sweep() -> str:
    check(periodic.sweep() + etl_sweeper.sweep())
    return "Objects and uploads that nothing names are deleted, and old events."


def purge() -> str:
    check(periodic.purge())
    return "Jobs that ended EXPORT_JOB_RETENTION_DAYS ago are deleted."


def check(failed: list[str]) -> None:
    if failed:
        raise CommandError(f"Not done: {', '.join(failed)}. `cleanup_step_failed` in the log above says why.")


JANITORS: dict[str, Callable[[], str]] = {"reap": reap, "sweep": sweep, "purge": purge}


# ---- Of rows --------------------------------------------------------------------------------------------------------
def cancel(job: Job) -> str:
    return f"{actions.cancel(job)} chunks will not be exported."


def retry(job: Job) -> str:
    return f"{actions.retry(job)} failed chunks begin anew."


def release(chunk: Chunk) -> str:
    return f"Taken from its worker: {manual_actions.release_lease(chunk)}."


def free(slot: Slot) -> str:
    manual_actions.free_slot(slot)
    return "Free."


def revoke_links(receipt: Receipt) -> str:
    """End the links alone; the owner may have another."""
    for link in Link.objects.filter(receipt=receipt, used_at=None, revoked_at=None):
        links.revoke(link)
    return "No link of it works; its owner may ask for another."


def withdraw(receipt: Receipt) -> str:
    """End the receipt, and delete the object now: a presigned URL is then of nothing."""
    receipts.revoke(receipt)
    try:
        storage_cleanup.delete_revoked(receipt)
    except storage.StorageError:
        raise Problem("It is over, but the storage does not answer: the reaper deletes its object later.") from None
    return "It is over, and its object is deleted."


def wake(task: Task) -> str:
    return etl_repair.wake(task)


def redeliver(webhook: Webhook) -> str:
    subscriptions.change(webhook, enabled=True)
    return f"Enabled; {subscriptions.redeliver_failed(webhook)} deliveries that failed are sent once more."


def revoke_tokens(user: Model) -> str:
    deleted, _ = AuthToken.objects.filter(user=user).delete()
    return f"{deleted} tokens work no more."


def users() -> QuerySet[Any]:
    from django.contrib.auth.models import User

    return User.objects.all()


# What it is done to, by which column it is named, and what is done.
Rows = tuple[Callable[[], QuerySet[Any]], str, Callable[[Any], str]]
VERBS: dict[str, Rows] = {
    "cancel": (Job.objects.all, "pk", cancel),
    "retry": (Job.objects.all, "pk", retry),
    "release": (Chunk.objects.all, "pk", release),
    "free": (Slot.objects.all, "pk", free),
    "revoke-links": (Receipt.objects.all, "pk", revoke_links),
    "withdraw": (Receipt.objects.all, "pk", withdraw),
    "wake": (Task.objects.all, "pk", wake),
    "redeliver": (Webhook.objects.all, "pk", redeliver),
    "revoke-tokens": (users, "username", revoke_tokens),
}
HELP = {
    "reap": "take back what lost workers and messages left behind, now",
    "sweep": "delete objects, uploads and events that nobody needs, now",
    "purge": "delete jobs that are older than EXPORT_JOB_RETENTION_DAYS, now",
    "cancel": "end jobs",
    "retry": "start the failed chunks of failed jobs again",
    "release": "take running chunks from their workers",
    "free": "free slots whose worker is lost, once its call is ended",
    "revoke-links": "end the open link of jobs",
    "withdraw": "end the receipts of jobs, and delete what they deliver",
    "wake": "send the message of documents again, and make a lost run-state anew",
    "redeliver": "enable webhooks, and send again what failed",
    "revoke-tokens": "end all tokens of users",
}


class Command(BaseCommand):
    help = "Does one thing that docs/runbook.md tells to do. Exit status 1: something was left as it was, and why."
    requires_system_checks = ()  # a warning of an unrelated part is no reason to refuse help

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        for name in (*JANITORS, *VERBS):
            verb = verbs.add_parser(name, help=HELP[name])
            if name in VERBS:
                verb.add_argument("ids", nargs="+", metavar="USERNAME" if name == "revoke-tokens" else "ID")

    def handle(self, *, verb: str, ids: list[str] | None = None, **_later: Any) -> None:
        if verb in JANITORS:
            log.info("repaired", verb=verb)
            self.stdout.write(JANITORS[verb]())
            return
        left = sum(not self.do(verb, each) for each in ids or [])
        if left:
            raise CommandError(f"{left} left as they were.")

    def do(self, verb: str, id_: str) -> bool:
        """Return whether it was done, and say so."""
        rows, column, do = VERBS[verb]
        try:
            said = do(rows().get(**{column: id_}))
        except Problem as refusal:
            self.stderr.write(f"{id_}: {refusal.detail}")
            return False
        except (rows().model.DoesNotExist, ValidationError, ValueError):
            self.stderr.write(f"{id_}: There is no such thing.")
            return False
        # Names of users are personal: they are not logged.
        log.info("repaired", verb=verb, id="" if column == "username" else id_)
        self.stdout.write(f"{id_}: {said}")
        return True
