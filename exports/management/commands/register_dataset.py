from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from exports.core.errors import ExportError
from exports.models import Dataset
from exports.source import database


class Command(BaseCommand):
    help = "Creates a dataset, or changes the one of that name. Checks that its function is there and fits."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--function", required=True, metavar="SCHEMA.NAME", help="used exactly as written")
        parser.add_argument("--base-path", required=True, metavar="PATH", help="prefix in S3_BUCKET")
        parser.add_argument("--schema-version", type=int, metavar="N")
        parser.add_argument("--key-pattern", metavar="REGEX")
        parser.add_argument("--statement-timeout", type=int, metavar="SECONDS")
        parser.add_argument("--max-concurrency", type=int, metavar="N")
        parser.add_argument("--formats", metavar="LIST", help="such as csv,jsonl")
        parser.add_argument("--reuse-max-age", type=int, metavar="SECONDS")

    def handle(self, *, name: str, **options: Any) -> None:
        dataset = Dataset.objects.filter(name=name).first() or Dataset(name=name)
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
        check_function(dataset)
        dataset.save()
        self.stdout.write(f"dataset {name}: {dataset.function} to {dataset.base_path}/")


FIELDS = (
    "function",
    "base_path",
    "schema_version",
    "key_pattern",
    "statement_timeout",
    "max_concurrency",
    "formats",
    "reuse_max_age",
)


def check_function(dataset: Dataset) -> None:
    """Raise CommandError unless the source has a function (text, date) of that name which returns a table."""
    try:
        with database.Session() as session:
            columns = session.columns(dataset.schema_and_name)
    except ExportError as error:
        raise CommandError(
            f"{dataset.function}(key text, effective_date date) cannot be used: {error.code} {error.detail}".strip()
        ) from None
    if not columns:
        raise CommandError(f"{dataset.function} returns no columns; it must return a table.")
