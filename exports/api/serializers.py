"""Serializers that validate export requests, with an error for each invalid field."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from itertools import islice
from typing import Any, NamedTuple, cast

from django.conf import settings
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.settings import api_settings

from config.platform.built_in_datasets import BuiltInDataset
from config.platform.http.problems import MAX_ERRORS
from config.platform.http.serializers import (
    CONTROL,
    INVALID_DATE,
    DayField,
    FilledText,
    StrictBoolean,
    StrictSerializer,
    WholeNumber,
    as_day,
    check_order,
)
from exports.core import planning
from exports.core.planning import Dialect, Pair, Shape
from exports.jobs.columns import columns_of
from exports.jobs.submission import ExportRequest, built_in_pair
from exports.models import Dataset
from exports.models.dataset import FORMATS, Format
from exports.models.job import MAX_NAME, Compression, DeliveryKind, Reuse

OTHER_FORMATS = [name for name in FORMATS if name != "csv"]
DEFAULT_COMPRESSION = {Format.PARQUET: Compression.ZSTD}  # none for other formats
DELIMITERS = [",", ";", "\t", "|"]
DELIVERIES = ["auto", *DeliveryKind.values]
MIN_DELIVERY_TTL = 600  # seconds
# Not allowed in keys, regardless of the dataset's pattern. Prevents path traversal and line breaks in logs.
FORBIDDEN_IN_KEYS = re.compile(r"\.\.|[/\\\x00-\x1f\x7f]")
MAX_KEY_BYTES = 200  # object stores allow 255 for a path segment, which also contains the date and the extension


KeyCheck = Callable[[str], bool]


def key_error(key: Any, fits: KeyCheck | None) -> ErrorDetail | None:
    """Return the error of a key, or None. `fits`: the dataset's key check, or None if the dataset is unknown."""
    if not isinstance(key, str):
        return ErrorDetail("Must be a string.", code="invalid")
    reason = ""
    if FORBIDDEN_IN_KEYS.search(key):
        reason = "Must not contain '..', slashes, backslashes, or control characters."
    elif (size := len(key.encode(errors="replace"))) > MAX_KEY_BYTES:
        reason = f"The key has {size:,} bytes. The limit is {MAX_KEY_BYTES}."
    elif fits and not fits(key):
        reason = "Does not match the key pattern of the dataset." if key else "The key is empty."
    return ErrorDetail(reason, code="invalid") if reason else None


KEY = {
    "type": "string",
    "maxLength": MAX_KEY_BYTES,
    "pattern": r"^[^/\\\x00-\x1f\x7f]*$",
    "description": "Matches the `keyPattern` of the dataset, and does not contain `..`.",
}
ITEM = {
    "type": "object",
    "required": ["key", "effectiveDate"],
    "properties": {"key": KEY, "effectiveDate": {"type": "string", "format": "date"}},
    "additionalProperties": False,
}


@extend_schema_field({"type": "array", "minItems": 1, "items": ITEM})
class ItemsField(serializers.Field[list[Pair], Any, Any, Any]):
    """List of `{"key", "effectiveDate"}`. Does not use nested serializers, because 10,000 would take seconds."""

    def to_internal_value(self, data: Any) -> list[Pair]:
        if not isinstance(data, list):
            raise ValidationError("Must be a list of objects with key and effectiveDate.")
        if not data:
            raise ValidationError("Must not be empty.", code="empty")
        if is_too_long(data):
            raise too_many_chunks(len(data), "items")
        fits = self.context.get("key_check")
        found = ((index, errors) for index, item in enumerate(data) if (errors := item_errors(item, fits)))
        if invalid := dict(islice(found, MAX_ERRORS)):
            raise ValidationError(invalid)  # type: ignore[arg-type]
        return [Pair(item["key"], date.fromisoformat(item["effectiveDate"])) for item in data]


def is_too_long(listed: Any) -> bool:
    """Return whether a list is too long to be validated. The factor leaves room for duplicates, which do not count."""
    return isinstance(listed, list) and len(listed) > 10 * settings.SLUICE.export_max_chunks_per_job


def too_many_chunks(count: int, unit: str = "chunks") -> ValidationError:
    limit = settings.SLUICE.export_max_chunks_per_job
    detail = f"The request has {count:,} {unit}. The limit is {limit:,} chunks per export."
    return ValidationError([ErrorDetail(detail, code="too_many_chunks")])


def item_errors(item: Any, fits: KeyCheck | None) -> Any:
    if not isinstance(item, dict):
        return [ErrorDetail("Must be an object with key and effectiveDate.", code="invalid")]
    errors: dict[str, list[ErrorDetail]] = {
        name: [ErrorDetail("Unknown field.", code="unknown_field")]
        for name in islice(item.keys() - {"key", "effectiveDate"}, MAX_ERRORS)
    }
    for name in ("key", "effectiveDate"):
        if name not in item:
            errors[name] = [ErrorDetail("This field is required.", code="required")]
    if "key" in item and (error := key_error(item["key"], fits)):
        errors["key"] = [error]
    if "effectiveDate" in item and as_day(item["effectiveDate"]) is None:
        errors["effectiveDate"] = [ErrorDetail(INVALID_DATE, code="invalid")]
    return errors


@extend_schema_field({"type": "array", "minItems": 1, "items": KEY})
class KeysField(serializers.Field[list[str], Any, Any, Any]):
    """Non-empty list of keys. Does not validate a list that is too long: FiltersSerializer rejects it."""

    def to_internal_value(self, data: Any) -> list[str]:
        if not isinstance(data, list) or not data:
            raise ValidationError("Must be a non-empty list of keys.")
        if is_too_long(data):
            return []
        fits = self.context.get("key_check")
        found = ((str(n), [error]) for n, key in enumerate(data) if (error := key_error(key, fits)))
        if errors := dict(islice(found, MAX_ERRORS)):
            raise ValidationError(errors)
        return list(data)


class KeyRange(NamedTuple):
    """Validated filters: keys, and an inclusive range of days."""

    keys: list[str]
    first: date
    last: date

    def stored(self) -> dict[str, Any]:
        """Return the filters as jobs store them: without duplicate keys, so that the quota limits their number."""
        keys = list(dict.fromkeys(self.keys))
        return {"keys": keys, "dateFrom": self.first.isoformat(), "dateTo": self.last.isoformat()}


class FiltersSerializer(StrictSerializer):
    """Every key on every day from dateFrom to dateTo, inclusive."""

    keys = KeysField()
    dateFrom = DayField()
    dateTo = DayField()

    def refused(self, data: Mapping[str, Any]) -> Iterator[tuple[str, list[ErrorDetail]]]:
        if is_too_long(data.get("keys")):
            yield api_settings.NON_FIELD_ERRORS_KEY, too_many_chunks(len(data["keys"]), "keys").detail  # type: ignore[misc]
        yield from check_order(data)
        yield from super().refused(data)

    def validate(self, attrs: dict[str, Any]) -> Any:
        return KeyRange(attrs["keys"], attrs["dateFrom"], attrs["dateTo"])


class CsvSerializer(StrictSerializer):
    """CSV options. Other formats only accept the defaults."""

    bom = StrictBoolean(default=False)
    delimiter = serializers.ChoiceField(choices=DELIMITERS, default=",")
    formulaPolicy = serializers.ChoiceField(choices=["none", "escape"], default="none")

    def validate(self, attrs: dict[str, Any]) -> Any:
        return Dialect(bom=attrs["bom"], delimiter=attrs["delimiter"], formula_policy=attrs["formulaPolicy"])


@extend_schema_field({"type": "array", "minItems": 1, "uniqueItems": True, "items": {"type": "string"}})
class ColumnsField(serializers.Field[list[str], Any, Any, Any]):
    """Non-empty list of columns of the dataset, without duplicates. Raises ColumnsUnknown."""

    def to_internal_value(self, data: Any) -> list[str]:
        if not isinstance(data, list) or not data:
            raise ValidationError("Must be a non-empty list of column names.")
        dataset = self.context["dataset"]
        known = {column["name"] for column in columns_of(dataset)} if dataset else None
        seen: set[str] = set()
        found = ((str(n), [error]) for n, name in enumerate(data) if (error := column_error(name, known, seen)))
        if errors := dict(islice(found, MAX_ERRORS)):
            raise ValidationError(errors)
        return list(data)


def column_error(name: Any, known: set[str] | None, seen: set[str]) -> ErrorDetail | None:
    """Return the error of a column, or add the column to `seen` and return None.

    `known`: the columns of the dataset, or None if the dataset is unknown.
    """
    if not isinstance(name, str):
        return ErrorDetail("Must be a string.", code="invalid")
    if name in seen:
        return ErrorDetail("The column is listed twice.", code="duplicate")
    if known is not None and name not in known:
        return ErrorDetail("The dataset has no such column.", code="unknown_column")
    seen.add(name)
    return None


class NameField(FilledText):
    """Single line of text. Surrounding white space is removed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=MAX_NAME, **options)

    def to_internal_value(self, data: Any) -> str:
        name = super().to_internal_value(data).strip()
        if CONTROL.search(name):
            raise ValidationError("Must not contain line breaks or control characters.")
        return name


class ExportRequestSerializer(StrictSerializer):
    """The chunks to export, as `items` or `filters`, and the format and delivery of the files."""

    name = NameField(required=False, help_text="Name for finding the export, such as `Invoices of February`.")
    dataset = serializers.CharField()
    items = ItemsField(required=False)
    filters = FiltersSerializer(required=False)
    format = serializers.ChoiceField(choices=FORMATS, default="csv")
    compression = serializers.ChoiceField(
        choices=Compression.choices,
        required=False,
        help_text="Default: `none`, or `zstd` for Parquet, which is compressed inside the file. Parquet does not "
        "support `gzip`.",
    )
    delivery = serializers.ChoiceField(choices=DELIVERIES, default="auto")
    csv = CsvSerializer(required=False)
    columns = ColumnsField(required=False, help_text="Columns of the files, in this order. Default: all.")
    reuse = serializers.ChoiceField(choices=Reuse.choices, default=Reuse.IF_PRESENT)
    allowDegraded = StrictBoolean(default=True)
    deliveryTtlSeconds = WholeNumber(
        min_value=MIN_DELIVERY_TTL,
        max_value=2**31 - 1,
        required=False,
        help_text="Lifetime of the delivery, up to the limit of the server. Default: the server's, usually a day.",
    )

    @classmethod
    def read(cls, data: Any, user_id: int) -> ExportRequest:  # type: ignore[override]
        """Return the validated request of a user, with all defaults filled in.

        Raises ColumnsUnknown, and ValidationError with the location of each error.
        """
        name = data.get("dataset") if isinstance(data, dict) else None
        datasets = Dataset.objects.granted_to(user_id)
        dataset = datasets.filter(name=name).first() if isinstance(name, str) and "\0" not in name else None
        check = dataset.key_check() if dataset else None
        serializer = cls(data=data, context={"dataset": dataset, "key_check": check, "user_id": user_id})
        serializer.is_valid(raise_exception=True)
        return cast("ExportRequest", serializer.validated_data)

    @property
    def built_in(self) -> BuiltInDataset | None:
        dataset: Dataset | None = self.context.get("dataset")
        return dataset.built_in if dataset else None

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        return {**fields, "filters": self.built_in.filters()} if self.built_in else fields

    def validate_dataset(self, name: str) -> str:
        if self.context["dataset"] is None:
            raise ValidationError("Dataset not found.", code="unknown_dataset")
        return name

    def validate_format(self, name: str) -> str:
        dataset = self.context["dataset"]
        if dataset and name not in dataset.formats:
            raise ValidationError(f"This dataset supports: {', '.join(dataset.formats)}.", code="invalid_choice")
        return name

    def validate_deliveryTtlSeconds(self, seconds: int) -> int:  # noqa: N802 - named after the field
        limit = settings.SLUICE.export_delivery_ttl_max_seconds
        if seconds > limit:
            raise ValidationError(f"Must be at most {limit:,}.", code="max_value")
        return seconds

    def validate_items(self, pairs: list[Pair]) -> list[Pair]:
        limit = settings.SLUICE.export_max_chunks_per_job
        if len(pairs) > limit and (count := len(set(pairs))) > limit:
            raise too_many_chunks(count)
        return pairs

    def validate_filters(self, filters: KeyRange | dict[str, Any]) -> KeyRange | dict[str, Any]:
        if not isinstance(filters, KeyRange):
            return filters
        count = planning.count_pairs(set(filters.keys), filters.first, filters.last)
        if count > settings.SLUICE.export_max_chunks_per_job:
            raise too_many_chunks(count)
        return filters

    def refused(self, data: Mapping[str, Any]) -> Iterator[tuple[str, list[ErrorDetail]]]:
        has_neither = "items" not in data and "filters" not in data
        # null is reported as an error of the field.
        has_both = data.get("items") is not None and data.get("filters") is not None
        if self.built_in:
            for name in data.keys() & {"items", "columns"}:
                yield name, [ErrorDetail("Not supported by this dataset. Use filters.", code="invalid")]
        elif has_neither or has_both:
            yield "items", [ErrorDetail("Specify exactly one of items and filters.", code="invalid")]
        if data.get("format", "csv") in OTHER_FORMATS and has_dialect(data.get("csv")):
            yield "csv", [ErrorDetail("Only supported for the format csv.", code="invalid")]
        if data.get("format") == Format.PARQUET and data.get("compression") == Compression.GZIP:
            yield "compression", [ErrorDetail("The format parquet supports: none, zstd.", code="invalid_choice")]
        yield from super().refused(data)

    def validate(self, attrs: dict[str, Any]) -> Any:
        filters: Any = attrs.get("filters")
        if self.built_in:
            pairs, duplicates = [built_in_pair(self.built_in, filters)], 0
        elif filters:
            pairs, duplicates = planning.from_filters(*filters)
            filters = filters.stored()
        else:
            pairs, duplicates = planning.deduplicate(attrs["items"])
        delivery = attrs["delivery"]
        if delivery == "auto":
            delivery = DeliveryKind.SINGLE if len(pairs) == 1 else DeliveryKind.ZIP
        return ExportRequest(
            dataset=self.context["dataset"],
            pairs=pairs,
            duplicates=duplicates,
            shape=Shape(
                format=attrs["format"],
                compression=attrs.get("compression", DEFAULT_COMPRESSION.get(attrs["format"], Compression.NONE)),
                dialect=attrs.get("csv", Dialect()),
                columns=tuple(attrs.get("columns", ())),
            ),
            delivery=delivery,
            reuse=Reuse.NEVER if self.built_in else attrs["reuse"],
            allow_degraded=attrs["allowDegraded"],
            delivery_ttl=attrs.get("deliveryTtlSeconds"),
            filters=filters,
            name=attrs.get("name", ""),
        )


def has_dialect(csv: Any) -> bool:
    """Return whether the CSV options are valid and differ from the defaults."""
    serializer = CsvSerializer(data=csv)
    return serializer.is_valid() and serializer.validated_data != Dialect()
