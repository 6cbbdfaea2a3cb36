"""`python manage.py reconcile [--delete-unknown]`: after the database was restored to an earlier point."""

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

log = structlog.get_logger(__name__)

# In this order: first what keeps a number from being given twice, then what anybody could use.
STEPS: tuple[tuple[str, Callable[[], int]], ...] = (
    ("sequences moved on", sequences.leap),
    ("leases taken back", exports.release_leases),
    ("links revoked", exports.revoke_links),
    ("jobs whose events are numbered anew", exports.advance_event_numbers),
    ("documents' fences raised", documents.raise_fences),
    ("run-states forgotten", documents.forget_strangers),
    ("receipts ended, their object is gone", exports.end_receipts),
    ("files forgotten, their object is gone or another", exports.delete_stale_files),
)
UNKNOWN: tuple[tuple[str, Callable[..., int]], ...] = (
    ("files", exports.unknown_files),
    ("delivered objects", exports.unknown_deliveries),
    ("artefacts of documents", documents.strange_artefacts),
)
ANOTHER = (
    "Nothing was done: of the files that rows know, none that was looked at is in this bucket. Is S3_BUCKET the one "
    "that belongs to this database? If it is, and its objects are lost, say --bucket-is-lost."
)


class Command(BaseCommand):
    help = (
        "Puts rows, Redis and object storage in agreement after the database was restored to an earlier point. "
        "To be run once, after `migrate` and before anything else of Sluice's is started; it may be run again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--delete-unknown",
            action="store_true",
            help="delete the objects that no row knows, and do nothing else. Run it without this before, which counts "
            "them: look whether this is the database that belongs to the bucket, and the point that you want",
        )
        parser.add_argument(
            "--bucket-is-lost",
            action="store_true",
            help="go on although none of the files that were looked at is in the bucket: receipts end, files are "
            "forgotten, and exports make them again",
        )

    def handle(self, *, delete_unknown: bool, bucket_is_lost: bool, **_later: Any) -> None:
        found = "deleted, no row knows them" if delete_unknown else "that no row knows: --delete-unknown deletes them"
        try:
            if not bucket_is_lost and exports.is_wrong_bucket():
                raise CommandError(ANOTHER)
            for said, step in () if delete_unknown else STEPS:
                self.tell(said, step)
            for what, step in UNKNOWN:
                self.tell(f"{what} {found}", partial(step, delete=delete_unknown))
        except (runstate.Unavailable, storage.StorageError) as error:
            raise CommandError(
                f"Redis or object storage did not answer ({error}). Run it again when it does."
            ) from None
        except DATABASE_ERRORS as error:
            raise CommandError(f"The database broke it off ({type(error).__name__}). Run it again.") from None

    def tell(self, said: str, step: Callable[[], int]) -> None:
        number = step()
        log.info("reconciled", what=said, number=number)
        self.stdout.write(f"{number:9,} {said}")
