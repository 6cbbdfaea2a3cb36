from argparse import ArgumentParser, BooleanOptionalAction
from typing import Any

from django.contrib.admin.models import ADDITION, CHANGE
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from config.platform.http.staff import record_command
from exports.jobs.columns import as_stored
from exports.models import Dataset
from exports.source.examination import examine


class Command(BaseCommand):
    help = "Create a dataset, or update an existing one. Checks that its function exists and returns a table."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--function", required=True, metavar="SCHEMA.NAME", help="name, used exactly as written")
        parser.add_argument("--base-path", required=True, metavar="PATH", help="prefix in S3_BUCKET")
        parser.add_argument("--key-pattern", metavar="REGEX")
        parser.add_argument("--formats", metavar="LIST", help="allowed formats, such as csv,parquet")
        for name, unit in NUMBERS.items():
            parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar=unit)

        parser.add_argument(
            "--allow-writes",
            action=BooleanOptionalAction,
            help="run the function in a read-write transaction, which is committed after all rows are read",
        )
        parser.add_argument(
            "--show-errors",
            action=BooleanOptionalAction,
            help="show owners of exports the message of the source for a failed chunk, which may quote data",
        )

    def handle(self, *, name: str, **options: Any) -> None:
        dataset = Dataset.objects.filter(name=name).first() or Dataset(name=name)
        if dataset.built_in:
            raise CommandError(f"{name} is a built-in dataset. Choose another name.")
        is_new = dataset.pk is None
        given = {field: options[field] for field in FIELDS if options[field] is not None}
        given["base_path"] = given["base_path"].rstrip("/")
        if "formats" in given:
            given["formats"] = [part.strip() for part in given["formats"].split(",") if part.strip()]
        for field, value in given.items():
            setattr(dataset, field, value)
        try:
            dataset.full_clean()
        except ValidationError as error:
            raise CommandError(
                "\n".join(f"{field}: {' '.join(texts)}" for field, texts in error.message_dict.items())
            ) from None
        found = examine(dataset.schema_and_name, allow_writes=dataset.allow_writes)
        if found.refusal:
            raise CommandError(found.refusal)
        dataset.columns = as_stored(found.columns)
        with transaction.atomic():
            # The examination takes seconds. Other columns may have been changed in the meantime, and are not written.
            now = (
                Dataset(name=name)
                if is_new
                else Dataset.objects.select_for_update(no_key=True).filter(name=name).first()
            )
            if now is None:
                raise CommandError(f"{name} was deleted in the meantime. Run the command again to create it.")
            dataset.save(update_fields=None if is_new else [*given, "columns", "updated_at"])
            text = changes(values_of(now), given, is_new=is_new)
            record_command(dataset, text, action=ADDITION if is_new else CHANGE)
        if found.warning:
            self.stderr.write(self.style.WARNING(f"Warning: {found.warning}"))
        self.stdout.write(f"dataset {name}: {dataset.function} to {dataset.base_path}/")


def values_of(dataset: Dataset) -> dict[str, Any]:
    return {field: getattr(dataset, field) for field in FIELDS}


def changes(before: dict[str, Any], given: dict[str, Any], *, is_new: bool) -> str:
    """Return the text for the audit log: all values of a new dataset, or the changed ones."""
    after = before | given
    new = [f"{field}: {value}" for field, value in after.items() if is_new or value != before[field]]
    return f"{'Registered' if is_new else 'Registered again'} by register_dataset. {'; '.join(new) or 'No changes.'}"


NUMBERS = {"schema_version": "N", "statement_timeout": "SECONDS", "max_concurrency": "N", "reuse_max_age": "SECONDS"}
FIELDS = ("function", "base_path", "key_pattern", "formats", "allow_writes", "show_errors", *NUMBERS)
