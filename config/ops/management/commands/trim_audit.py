"""`python manage.py trim_audit --before 2026-01-01`: delete old entries of the audit log, as the owner of its table."""

from argparse import ArgumentParser
from datetime import UTC, date, datetime, time
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import ProgrammingError, connection, transaction

from config.platform.db import clock
from config.platform.models import AuditEntry

BATCH_SIZE = 10_000  # entries per transaction


class Command(BaseCommand):
    help = "Deletes entries of the audit log from before a day. Only the owner of the table can: docs/access.md."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--before", required=True, type=date.fromisoformat, metavar="YYYY-MM-DD", help="UTC")

    def handle(self, *, before: date, **_options: Any) -> None:
        end = datetime.combine(before, time.min, UTC)
        if end > clock.now():
            raise CommandError("--before is in the future.")
        total = 0
        try:
            while deleted := delete_some(end):
                total += deleted
        except ProgrammingError:
            raise CommandError(
                "The database refused: only the owner of the table platform_audit can delete entries."
            ) from None
        self.stdout.write(f"Deleted {total:,} entries from before {before}.")


def delete_some(end: datetime) -> int:
    """Delete up to BATCH_SIZE of the oldest entries, and return their number."""
    oldest = AuditEntry.objects.filter(at__lt=end).order_by("at").values("pk")[:BATCH_SIZE]
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL sluice.trim_audit = 'on'")
        return AuditEntry.objects.filter(pk__in=list(oldest.values_list("pk", flat=True)))._raw_delete("default")
