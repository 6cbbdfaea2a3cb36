"""`python manage.py trim_audit --before 2026-01-01`: delete old entries of the audit log, as the owner of its table."""

from argparse import ArgumentParser
from datetime import UTC, date, datetime, time
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import ProgrammingError, connection, transaction
from psycopg.errors import InsufficientPrivilege

from config.platform.db import clock
from config.platform.models import AuditEntry

BATCH_SIZE = 10_000  # entries per transaction


class Command(BaseCommand):
    help = "Deletes audit entries from before a date. Requires the role that owns the table: see docs/access.md."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--before", required=True, type=iso_date, metavar="YYYY-MM-DD", help="the first day to keep, in UTC"
        )

    def handle(self, *, before: date, **_options: Any) -> None:
        end = datetime.combine(before, time.min, UTC)
        if end > clock.now():
            raise CommandError(f"--before {before} is in the future.")
        total = 0
        try:
            while deleted := delete_batch(end):
                total += deleted
        except ProgrammingError as error:
            if not isinstance(error.__cause__, InsufficientPrivilege):
                raise
            raise CommandError(
                "Permission denied: only the owner of the table platform_audit can delete audit entries."
            ) from None
        self.stdout.write(f"Deleted {total:,} entries from before {before}.")


def iso_date(text: str) -> date:
    return date.fromisoformat(text)


def delete_batch(end: datetime) -> int:
    """Delete up to BATCH_SIZE of the oldest entries. Return the number of deleted entries."""
    oldest = AuditEntry.objects.filter(at__lt=end).order_by("at").values_list("pk", flat=True)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL sluice.trim_audit = 'on'")
        deleted, _ = AuditEntry.objects.filter(pk__in=list(oldest[:BATCH_SIZE])).delete()
    return deleted
