"""The request of an export: every field checked, every bad one named, before anything is written."""

import re
from collections.abc import Iterator, Mapping
from datetime import date
from itertools import islice
from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.settings import api_settings

from config.platform.http.problems import MAX_ERRORS
from config.platform.http.serializers import StrictSerializer
from exports.core import planning
from exports.core.planning import Dialect, Pair, Shape
from exports.jobs.submission import ExportRequest
from exports.models import Dataset
from exports.models.dataset import FORMATS
from exports.models.job import Compression, DeliveryKind, Reuse

DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
NOT_A_DAY = "Must be a date written YYYY-MM-DD."
OTHER_FORMATS = [name for name in FORMATS if name != "csv"]
DELIMITERS = [",", ";", "\t", "|"]
DELIVERIES = ["auto", *DeliveryKind.values]
# Whatever a dataset's own pattern allows: what would leave the folder or the log line is never a key.
NEVER_IN_KEYS = re.compile(r"\.\.|[/\\\x00-\x1f\x7f]")
MAX_KEY_BYTES = 200  # object stores take 255 for a segment, and the date and extension want theirs


class StrictBoolean(serializers.BooleanField):
    """true or false, and not "yes" or 1."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


@extend_schema_field({"type": "string", "format": "date"})
class DayField(serializers.Field[date, Any, str, Any]):
    """A date, strictly YYYY-MM-DD: Python alone would also take 20130215 and 2013-W07-5."""

    default_error_messages = {"invalid": NOT_A_DAY}

    def to_internal_value(self, data: Any) -> date:
        day = as_day(data)
        if day is None:
            self.fail("invalid")
        return day

    def to_representation(self, value: date) -> str:
        return value.isoformat()


def as_day(data: Any) -> date | None:
    if not isinstance(data, str) or not DATE.fullmatch(data):
        return None
    try:
        return date.fromisoformat(data)
    except ValueError:
        return None


def wrong_with_key(key: Any, pattern: re.Pattern[str] | None) -> ErrorDetail | None:
    """Return what is wrong with a key, or None. Without a dataset there is no pattern: what holds for all counts."""
    if not isinstance(key, str):
        return ErrorDetail("Must be a string.", code="invalid")
    if (
        NEVER_IN_KEYS.search(key)
        or len(key.encode(errors="replace")) > MAX_KEY_BYTES
        or (pattern and not pattern.fullmatch(key))
    ):
        return ErrorDetail("Not a key of this dataset: it does not match the dataset's key pattern.", code="invalid")
    return None


KEY = {
    "type": "string",
    "maxLength": MAX_KEY_BYTES,
    "pattern": r"^[^/\\\x00-\x1f\x7f]*$",
    "description": "Fits the dataset's `keyPattern`, and never has `..` in it.",
}
ITEM = {
    "type": "object",
    "required": ["key", "effectiveDate"],
    "properties": {"key": KEY, "effectiveDate": {"type": "string", "format": "date"}},
    "additionalProperties": False,
}


@extend_schema_field({"type": "array", "minItems": 1, "items": ITEM})
class ItemsField(serializers.Field[list[Pair], Any, Any, Any]):
    """`[{"key", "effectiveDate"}]`. Written out, because 10,000 nested serializers take seconds."""

    def to_internal_value(self, data: Any) -> list[Pair]:
        if not isinstance(data, list):
            raise ValidationError("Must be a list of {key, effectiveDate}.")
        if not data:
            raise ValidationError("Must not be empty.", code="empty")
        if is_endless(data):
            raise ValidationError([too_many_chunks()])
        pattern = self.context.get("key_pattern")
        found = ((index, wrong) for index, item in enumerate(data) if (wrong := wrong_with_item(item, pattern)))
        errors: Any = dict(islice(found, MAX_ERRORS))
        if errors:
            raise ValidationError(errors)
        return [Pair(item["key"], date.fromisoformat(item["effectiveDate"])) for item in data]

    def to_representation(self, value: list[Pair]) -> Any:
        return [{"key": pair.key, "effectiveDate": pair.effective_date.isoformat()} for pair in value]


def is_endless(listed: Any) -> bool:
    """Repetitions are folded, but not any number of them: what is looked at and kept must not exceed the request."""
    return isinstance(listed, list) and len(listed) > 10 * settings.SLUICE.export_max_chunks_per_job


def too_many_chunks() -> ErrorDetail:
    limit = settings.SLUICE.export_max_chunks_per_job
    return ErrorDetail(f"One export holds at most {limit} chunks.", code="too_many_chunks")


def wrong_with_item(item: Any, pattern: re.Pattern[str] | None) -> Any:
    if not isinstance(item, dict):
        return [ErrorDetail("Must be an object with key and effectiveDate.", code="invalid")]
    errors: dict[str, list[ErrorDetail]] = {
        name: [ErrorDetail("Unknown field.", code="unknown_field")]
        for name in islice(item.keys() - {"key", "effectiveDate"}, MAX_ERRORS)
    }
    for name in ("key", "effectiveDate"):
        if name not in item:
            errors[name] = [ErrorDetail("This field is required.", code="required")]
    if "key" in item and (wrong := wrong_with_key(item["key"], pattern)):
        errors["key"] = [wrong]
    if "effectiveDate" in item and as_day(item["effectiveDate"]) is None:
        errors["effectiveDate"] = [ErrorDetail(NOT_A_DAY, code="invalid")]
    return errors


@extend_schema_field({"type": "array", "minItems": 1, "items": KEY})
class KeysField(serializers.Field[list[str], Any, Any, Any]):
    """A list of keys that is not empty. One that is endless is not looked at: FiltersSerializer refuses it."""

    def to_internal_value(self, data: Any) -> list[str]:
        if not isinstance(data, list) or not data:
            raise ValidationError("Must be a list of keys that is not empty.")
        if is_endless(data):
            return []
        pattern = self.context.get("key_pattern")
        found = ((str(n), [wrong]) for n, key in enumerate(data) if (wrong := wrong_with_key(key, pattern)))
        if errors := dict(islice(found, MAX_ERRORS)):
            raise ValidationError(errors)
        return list(data)

    def to_representation(self, value: list[str]) -> Any:
        return value


class FiltersSerializer(StrictSerializer):
    """Every key on every day from dateFrom to dateTo, both included."""

    keys = KeysField()
    dateFrom = DayField()
    dateTo = DayField()

    def refused(self, data: Mapping[str, Any]) -> Iterator[tuple[str, list[ErrorDetail]]]:
        if is_endless(data.get("keys")):
            yield api_settings.NON_FIELD_ERRORS_KEY, [too_many_chunks()]
        first, last = as_day(data.get("dateFrom")), as_day(data.get("dateTo"))
        if first and last and last < first:
            yield "dateTo", [ErrorDetail("Must not be before dateFrom.", code="invalid")]
        yield from super().refused(data)


class CsvSerializer(StrictSerializer):
    """How CSV is written. Other formats take the defaults only."""

    bom = StrictBoolean(default=False)
    delimiter = serializers.ChoiceField(choices=DELIMITERS, default=",")
    formulaPolicy = serializers.ChoiceField(choices=["none", "escape"], default="none")


class ExportRequestSerializer(StrictSerializer):
    """What to export, by `items` or by `filters`, and how."""

    dataset = serializers.CharField()
    items = ItemsField(required=False)
    filters = FiltersSerializer(required=False)
    format = serializers.ChoiceField(choices=FORMATS, default="csv")
    compression = serializers.ChoiceField(choices=Compression.choices, default=Compression.NONE)
    delivery = serializers.ChoiceField(choices=DELIVERIES, default="auto")
    csv = CsvSerializer(required=False)
    reuse = serializers.ChoiceField(choices=Reuse.choices, default=Reuse.IF_PRESENT)
    allowDegraded = StrictBoolean(default=True)

    @classmethod
    def read(cls, data: Any) -> ExportRequest:
        """Return the request, checked and complete. Raises ValidationError with a place for each thing wrong."""
        name = data.get("dataset") if isinstance(data, dict) else None
        dataset = Dataset.objects.filter(name=name).first() if isinstance(name, str) and "\0" not in name else None
        pattern = re.compile(dataset.key_pattern) if dataset else None
        serializer = cls(data=data, context={"dataset": dataset, "key_pattern": pattern})
        serializer.is_valid(raise_exception=True)
        return serializer.as_request()

    def validate_dataset(self, name: str) -> str:
        if self.context["dataset"] is None:
            raise ValidationError("There is no such dataset.", code="unknown_dataset")
        return name

    def validate_format(self, name: str) -> str:
        dataset = self.context["dataset"]
        if dataset and name not in dataset.formats:
            raise ValidationError(f"This dataset comes as: {', '.join(dataset.formats)}.", code="invalid_choice")
        return name

    def validate_items(self, pairs: list[Pair]) -> list[Pair]:
        limit = settings.SLUICE.export_max_chunks_per_job
        if len(pairs) > limit and len(set(pairs)) > limit:
            raise ValidationError([too_many_chunks()])
        return pairs

    def validate_filters(self, filters: dict[str, Any]) -> dict[str, Any]:
        limit = settings.SLUICE.export_max_chunks_per_job
        if planning.count(**span_of({**filters, "keys": set(filters["keys"])})) > limit:
            raise ValidationError([too_many_chunks()])
        return filters

    def refused(self, data: Mapping[str, Any]) -> Iterator[tuple[str, list[ErrorDetail]]]:
        has_neither = "items" not in data and "filters" not in data
        has_both = data.get("items") is not None and data.get("filters") is not None  # a null is told by its field
        if has_neither or has_both:
            yield "items", [ErrorDetail("Give exactly one of items and filters.", code="invalid")]
        if data.get("format", "csv") in OTHER_FORMATS and has_dialect(data.get("csv")):
            yield "csv", [ErrorDetail("These options are for the format csv only.", code="invalid")]
        yield from super().refused(data)

    def as_request(self) -> ExportRequest:
        attrs = self.validated_data
        filters = attrs.get("filters")
        pairs, duplicates = planning.from_filters(**span_of(filters)) if filters else planning.fold(attrs["items"])
        delivery = attrs["delivery"]
        if delivery == "auto":
            delivery = DeliveryKind.SINGLE if len(pairs) == 1 else DeliveryKind.ZIP
        return ExportRequest(
            dataset=self.context["dataset"],
            pairs=pairs,
            duplicates=duplicates,
            shape=Shape(format=attrs["format"], compression=attrs["compression"], dialect=dialect_of(attrs)),
            delivery=delivery,
            reuse=attrs["reuse"],
            allow_degraded=attrs["allowDegraded"],
            filters=as_kept(filters) if filters else None,
        )


def as_kept(filters: dict[str, Any]) -> dict[str, Any]:
    """Return what the job keeps of them: each key once, so that it costs no more than the chunks that were paid for."""
    return dict(FiltersSerializer({**filters, "keys": list(dict.fromkeys(filters["keys"]))}).data)


def span_of(filters: dict[str, Any]) -> dict[str, Any]:
    return {"keys": filters["keys"], "first": filters["dateFrom"], "last": filters["dateTo"]}


def dialect_of(attrs: dict[str, Any]) -> Dialect:
    csv = attrs.get("csv") or {}
    return Dialect(
        bom=csv.get("bom", False), delimiter=csv.get("delimiter", ","), formula_policy=csv.get("formulaPolicy", "none")
    )


def has_dialect(csv: Any) -> bool:
    """Tell whether valid options for CSV are given, and not just the defaults."""
    serializer = CsvSerializer(data=csv)
    return serializer.is_valid() and dialect_of({"csv": serializer.validated_data}) != Dialect()
