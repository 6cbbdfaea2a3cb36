"""Serializers that validate requests, strict about fields and types."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from django.core.files.uploadedfile import UploadedFile
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.request import Request

from config.platform.http.paging import refusal, whole_number
from config.platform.http.serializers import FilledText, StrictBoolean, StrictSerializer, Text, WholeNumber
from etl.core.states import Stage

MAX_ID = 2**63 - 1  # of a bigint
MAX_MARKDOWN = 1_000_000  # characters
# `type/subtype` with parameters (RFC 9110, 8.3.1). It becomes a header of the upload.
MEDIA_TYPE = r"^[A-Za-z0-9!#$&^_.+-]{1,60}/[A-Za-z0-9!#$&^_.+-]{1,80}( ?; ?[A-Za-z0-9_-]{1,20}=[A-Za-z0-9_.-]{1,40})*$"


KEEP_DAYS: dict[str, Any] = {
    "min_value": 1,
    "max_value": 36_500,
    "required": False,
    "help_text": "Days until the task is deleted.",
}


class SubmitKeySerializer(StrictSerializer):
    """Submission of an uploaded document by its `file_key`."""

    file_key = Text(max_length=200)
    rule_id = WholeNumber(min_value=1, max_value=MAX_ID, required=False, allow_null=True)
    keep_days = WholeNumber(**KEEP_DAYS)


class SubmitFileSerializer(StrictSerializer):
    """Submission of a document in the request."""

    file = serializers.FileField(allow_empty_file=True, error_messages={"invalid": "Must be a file with a name."})
    rule_id = serializers.IntegerField(min_value=1, max_value=MAX_ID, required=False)  # a form has no null
    keep_days = serializers.IntegerField(**KEEP_DAYS)

    def refused(self, data: Mapping[str, Any]) -> Iterator[tuple[str, list[ErrorDetail]]]:
        yield from repeated_fields(data, map(str, self.fields))
        yield from super().refused(data)


REPEATED = ErrorDetail("Must be given only once.", code="repeated")


def repeated_fields(data: Mapping[str, Any], names: Iterable[str]) -> Iterator[tuple[str, list[ErrorDetail]]]:
    """Yield the errors of fields that occur several times in a form."""
    many = getattr(data, "getlist", None)
    for name in names:
        if many and len(many(name)) > 1:
            yield name, [REPEATED]


BATCH_NAME: dict[str, Any] = {"max_length": 200, "allow_blank": True, "default": "", "help_text": "Shown in lists."}


class BatchKeysSerializer(StrictSerializer):
    """Submission of uploaded documents by their `file_key`, or of files in your inbox."""

    name = Text(**BATCH_NAME)
    rule_id = WholeNumber(min_value=1, max_value=MAX_ID, required=False, allow_null=True)
    keep_days = WholeNumber(**KEEP_DAYS)
    file_keys = serializers.ListField(child=Text(max_length=200), min_length=1, required=False)
    prefix = Text(
        max_length=500,
        allow_blank=True,
        required=False,
        help_text="Instead of `file_keys`: submit all files whose paths below your `inbox` (`GET /api/v1/etl/limits`) "
        "begin with this. Empty: the whole inbox.",
    )

    def refused(self, data: Mapping[str, Any]) -> Iterator[tuple[str, list[ErrorDetail]]]:
        if "file_keys" in data and "prefix" in data:
            yield "prefix", [ErrorDetail("Use either file_keys or prefix.", code="invalid")]
        elif "file_keys" not in data and "prefix" not in data:
            yield "file_keys", [ErrorDetail("file_keys or prefix is required.", code="required")]
        yield from super().refused(data)

    def validate_file_keys(self, keys: list[str]) -> list[str]:
        first: dict[str, int] = {}
        repeated = {index: [REPEATED] for index, key in enumerate(keys) if first.setdefault(key, index) < index}
        if repeated:
            raise ValidationError(repeated)  # type: ignore[arg-type]
        return keys


class BatchFilesSerializer(StrictSerializer):
    """Submission of several documents, or of one ZIP file with documents, in the request."""

    name = Text(**BATCH_NAME)
    rule_id = serializers.IntegerField(min_value=1, max_value=MAX_ID, required=False)  # a form has no null
    keep_days = serializers.IntegerField(**KEEP_DAYS)
    file = serializers.ListField(
        child=serializers.FileField(allow_empty_file=True, error_messages={"invalid": "Must be a file with a name."})
    )

    def refused(self, data: Mapping[str, Any]) -> Iterator[tuple[str, list[ErrorDetail]]]:
        yield from repeated_fields(data, [name for name in map(str, self.fields) if name != "file"])
        yield from super().refused(data)


class UploadRequestSerializer(StrictSerializer):
    """The file that the client will upload."""

    filename = Text(max_length=1000, allow_blank=True, help_text="Shown in lists.")
    content_type = serializers.RegexField(MEDIA_TYPE, max_length=200)
    size = WholeNumber(min_value=0, max_value=MAX_ID, help_text="Exact number of bytes that will be uploaded.")


class RetrySerializer(StrictSerializer):
    """The stage to restart from, and the rule to apply."""

    from_stage = serializers.ChoiceField(choices=Stage.choices)
    rule_id = WholeNumber(
        min_value=1,
        max_value=MAX_ID,
        required=False,
        allow_null=True,
        help_text="Default: the same rule and version.",
    )


class CancelSerializer(StrictSerializer):
    """An empty body, or whether to cancel a running task."""

    force = StrictBoolean(default=False, help_text="Also cancel a task that is being processed.")


class AnyJSON(serializers.JSONField):
    """Any JSON value. Numbers keep all their digits."""

    def to_internal_value(self, data: Any) -> Any:
        return data


class CorrectionSerializer(StrictSerializer):
    """A correction of the data of a result."""

    data = AnyJSON(allow_null=True)  # type: ignore[assignment]


class TrialSerializer(StrictSerializer):
    """Markdown to test a rule on."""

    markdown = FilledText(max_length=MAX_MARKDOWN, help_text="Lines such as `<!-- page: 2 -->` start new pages.")
    task_id = WholeNumber(
        max_value=MAX_ID,
        required=False,
        min_value=1,
        help_text="The document whose pages are shown to the model by a rule with the strategy `vision`.",
    )


def is_form(request: Request) -> bool:
    return (request.content_type or "").startswith("multipart/")


class SubmitInput:
    """Validated input of a submission: a file or the key of an earlier upload, and a rule."""

    def __init__(self, request: Request) -> None:
        fields = (SubmitFileSerializer if is_form(request) else SubmitKeySerializer).read(request.data)
        self.file: UploadedFile | None = fields.get("file")
        self.file_key: str = fields.get("file_key", "")
        self.rule_id: int | None = fields.get("rule_id")
        self.keep_days: int | None = fields.get("keep_days")

    def identity(self) -> dict[str, Any]:
        """Return the values, besides the document, that a request with the same idempotency key must repeat."""
        return {"rule_id": self.rule_id} | ({"keep_days": self.keep_days} if self.keep_days else {})


class BatchInput:
    """Validated input of a batch: a rule, and files, an archive, keys of earlier uploads, or a prefix of the inbox."""

    @classmethod
    def of(cls, request: Request) -> Self:
        return cls((BatchFilesSerializer if is_form(request) else BatchKeysSerializer).read(request.data))

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.files: list[UploadedFile] = fields.get("file", [])
        self.file_keys: list[str] = fields.get("file_keys", [])
        self.prefix: str | None = fields.get("prefix")
        self.options: dict[str, Any] = {name: fields.get(name) for name in ("name", "rule_id", "keep_days")}


def read_flag(request: Request, name: str) -> bool:
    """Return a query parameter that is `true` or `false`, by default false. Raises ValidationError at the parameter."""
    text = request.query_params.get(name, "false")
    if text not in {"true", "false"}:
        raise refusal(name, "Must be true or false.")
    return text == "true"


def read_choice(request: Request, name: str) -> bool | None:
    """Return a query parameter that is `true` or `false`, or None without it. Raises the errors of `read_flag`."""
    return read_flag(request, name) if name in request.query_params else None


def read_number(request: Request, name: str, *, minimum: int, maximum: int, default: int, unit: str) -> int:
    """Return a query parameter as a whole number. Raises ValidationError at the parameter."""
    text = request.query_params.get(name, str(default))
    number = whole_number(text, maximum=maximum)
    if number is None or number < minimum:
        raise refusal(name, f"Must be a whole number of {unit} from {minimum} to {maximum}.")
    return number
