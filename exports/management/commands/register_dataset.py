from argparse import ArgumentParser, BooleanOptionalAction
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from exports.jobs.columns import as_stored
from exports.models import Dataset
from exports.source import database


class Command(BaseCommand):
    help = "Create a dataset, or update an existing one. Checks that its function exists and returns a table."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--function", required=True, metavar="SCHEMA.NAME", help="used exactly as written")
        parser.add_argument("--base-path", required=True, metavar="PATH", help="prefix in S3_BUCKET")
        parser.add_argument("--key-pattern", metavar="REGEX")
        parser.add_argument("--formats", metavar="LIST", help="such as csv,parquet")
        for name, unit in NUMBERS.items():
            parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar=unit)

        parser.add_argument(
            "--allow-writes",
            action=BooleanOptionalAction,
            help="run the function in a read-write transaction, and commit it after all rows were read",
        )

    def handle(self, *, name: str, **options: Any) -> None:
        dataset = Dataset.objects.filter(name=name).first() or Dataset(name=name)
        if dataset.built_in:
            raise CommandError(f"{name} is a built-in dataset. Choose another name.")
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
        columns, reason = database.examine(dataset.schema_and_name)
        if reason:
            raise CommandError(reason)
        dataset.columns = as_stored(columns)
        dataset.save()
        self.stdout.write(f"dataset {name}: {dataset.function} to {dataset.base_path}/")


NUMBERS = {"schema_version": "N", "statement_timeout": "SECONDS", "max_concurrency": "N", "reuse_max_age": "SECONDS"}
FIELDS = ("function", "base_path", "key_pattern", "formats", "allow_writes", *NUMBERS)
