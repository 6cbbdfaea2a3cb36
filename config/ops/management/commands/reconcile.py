"""`python manage.py reconcile [--delete-unknown] [--bucket-is-lost]`: the steps after a restore of the database.

They reconcile Redis and object storage with it.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from django.core.management.base import BaseCommand, CommandError

from config.platform import storage
from config.platform.db import sequences
from config.platform.http.problems import DATABASE_ERRORS
from etl import runstate
from etl.maintenance import after_restore as documents
from exports.maintenance import after_restore as exports
from exports.maintenance import watermark

log = structlog.get_logger(__name__)

# In this order: first prevent numbers from being issued twice, then revoke what users could still use.
STEPS: tuple[tuple[str, Callable[[], int]], ...] = (
    ("sequences advanced", sequences.advance),
    ("leases released", exports.release_leases),
    ("links revoked", exports.revoke_links),
    ("jobs with advanced event numbers", exports.advance_event_numbers),
    ("generations of documents raised", documents.raise_generations),
    ("run-states without a document deleted", documents.forget_unknown_tasks),
    ("receipts ended because their object is missing", exports.end_receipts),
    ("files removed from the cache because their object is missing or different", exports.delete_stale_files),
    # The last step: an interrupted run leaves the alert.
    ("steps of the watermark between the database and the bucket", watermark.adopt),
)
UNKNOWN: tuple[tuple[str, Callable[..., int]], ...] = (
    ("files", exports.find_unreferenced_files),
    ("delivered objects", exports.find_unreferenced_deliveries),
    ("artifacts of documents", documents.unknown_artifacts),
)
WRONG_BUCKET = (
    "Nothing was changed: none of the files in the database that were checked are in this bucket. Check that S3_BUCKET "
    "belongs to this database. If it does and its objects are lost, use --bucket-is-lost."
)


class Command(BaseCommand):
    help = (
        "Reconciles Redis and object storage with a database that was restored to an earlier point. "
        "Run it after `migrate` and before you start web, beat or workers. It is safe to run again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--delete-unknown",
            action="store_true",
            help="only delete the objects that no row references. First run it without this option, which counts them, "
            "and make sure that the database belongs to the bucket and is restored to the right point",
        )
        parser.add_argument(
            "--bucket-is-lost",
            action="store_true",
            help="continue although none of the checked files are in the bucket: receipts end, cached files are "
            "removed, and exports create them again",
        )

    def handle(self, *, delete_unknown: bool, bucket_is_lost: bool, **_kwargs: Any) -> None:
        found = "without a row deleted" if delete_unknown else "without a row; --delete-unknown deletes them"
        try:
            if not bucket_is_lost and exports.is_wrong_bucket():
                raise CommandError(WRONG_BUCKET)
            for label, step in () if delete_unknown else STEPS:
                self.run_step(label, step)
            for kind, find in UNKNOWN:
                self.run_step(f"{kind} {found}", partial(find, delete=delete_unknown))
        except (runstate.Unavailable, storage.StorageError) as error:
            raise CommandError(
                f"Redis or object storage did not respond ({error}). Run the command again when it does."
            ) from None
        except DATABASE_ERRORS as error:
            raise CommandError(f"Database error ({type(error).__name__}). Run the command again.") from None

    def run_step(self, label: str, step: Callable[[], int]) -> None:
        number = step()
        log.info("reconciled", what=label, number=number)
        self.stdout.write(f"{number:9,} {label}")
