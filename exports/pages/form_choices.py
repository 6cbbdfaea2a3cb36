"""Choices in the form for an export."""

from django.conf import settings

from config.platform.durations import duration
from exports.core.planning import Dialect

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe |"}
# CSV presets for users who aren't familiar with byte order marks.
DIALECTS = {
    "standard": Dialect(),
    "excel": Dialect(bom=True, formula_policy="escape"),
    "excel-semicolon": Dialect(bom=True, delimiter=";", formula_policy="escape"),
}
CSV_PRESETS = [
    ("standard", "Standard: exactly as Postgres writes it"),
    ("excel", "Excel: UTF-8 with byte order mark, formulas escaped"),
    ("excel-semicolon", "Excel with decimal commas (1,5): the same, delimited by semicolons"),
    ("own", "Custom"),
]
FORMAT_CHOICES = [
    ("csv", "CSV"),
    ("jsonl", "JSON Lines: one object per row"),
    ("json", "JSON: with column names and types"),
    ("parquet", "Parquet: typed columns, for DuckDB, Spark or pandas"),
]
DELIVERIES = [
    ("auto", "Automatic: a file for one chunk, a zip for several"),
    ("single", "Single file: all chunks joined"),
    ("zip", "Zip: one file per chunk"),
    ("manifest", "Manifest: a list of files to download one by one"),
]
DOCUMENT_STATUSES = [
    ("", "All"),
    ("completed", "Completed"),
    ("failed", "Failed"),
    ("cancelled", "Cancelled"),
    ("pending", "Waiting or running"),
]
LIFETIMES = {600: "10 minutes", 3600: "1 hour", 86_400: "1 day", 259_200: "3 days", 604_800: "1 week"}


def lifetimes() -> list[tuple[int | str, str]]:
    """Return the choices for the lifetime of a delivery, with the default first."""
    env = settings.SLUICE
    default = duration(env.export_delivery_ttl_seconds)
    allowed = [(seconds, text) for seconds, text in LIFETIMES.items() if seconds <= env.export_delivery_ttl_max_seconds]
    return [("", f"Default: {default}"), *allowed]
