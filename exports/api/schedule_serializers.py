"""Serializers that validate the fields of schedules. `exports.schedules` validates their combination."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from config.platform.http.serializers import FilledText, StrictBoolean, StrictSerializer, Text, WholeNumber
from exports.models.schedule import Misfire

MAX_DAYS = 3660
SINCE_LAST_SUCCESS = (
    "Extend the window back to the day after the last day of the newest successful export, so that the next run also "
    "exports the days of failed and missed runs."
)


@extend_schema_field(
    {
        "type": "object",
        "additionalProperties": True,
        "required": ["dataset"],
        "properties": {
            "dataset": {"type": "string"},
            "keys": {"type": "array", "minItems": 1, "items": {"type": "string"}},
            "ruleId": {"type": "integer", "minimum": 1},
            "status": {"type": "string"},
        },
        "description": "Body of `POST /exports` with `keys` instead of `items` or `filters`: every run exports each "
        "key for each day of the window. The dataset `documents` has `ruleId` and `status` instead of keys. All other "
        "fields are those of `POST /exports`.",
    }
)
class RequestField(serializers.Field[dict[str, Any], Any, Any, Any]):
    """An object whose content is validated like the body of `POST /exports`."""

    default_error_messages = {"invalid": "Must be an object."}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            self.fail("invalid")
        return data


class WindowSerializer(StrictSerializer):
    """The days to export, relative to the local date of the planned time."""

    unit = serializers.ChoiceField(choices=["day"], default="day")

    def get_fields(self) -> dict[str, Any]:
        return {
            **super().get_fields(),
            "from": WholeNumber(min_value=-MAX_DAYS, max_value=MAX_DAYS, help_text="First day. -1 is the day before."),
            "to": WholeNumber(min_value=-MAX_DAYS, max_value=MAX_DAYS, help_text="Last day, inclusive."),
        }


class ScheduleFields(StrictSerializer):
    """Base of serializers of schedules. Converts fields to columns of the model."""

    @classmethod
    def read(cls, data: Any) -> dict[str, Any]:
        values = super().read(data)
        window = values.pop("window", None)
        if "sinceLastSuccess" in values:
            values["since_last_success"] = values.pop("sinceLastSuccess")
        return {**values, **({"window_from": window["from"], "window_to": window["to"]} if window else {})}


class NewScheduleSerializer(ScheduleFields):
    """Fields of a new schedule."""

    name = FilledText(max_length=100)
    cron = Text(max_length=100, help_text="Five fields: minute, hour, day of month, month, day of week.")
    timezone = Text(max_length=64, default="UTC", help_text="IANA time zone, such as `Europe/Berlin`.")
    request = RequestField()
    window = WindowSerializer()
    sinceLastSuccess = StrictBoolean(default=False, help_text=SINCE_LAST_SUCCESS)
    misfire = serializers.ChoiceField(
        choices=Misfire.choices,
        default=Misfire.SKIP,
        help_text="Handling of planned times that could not run on time: `skip` them, or `catch_up` on the most "
        "recent ones.",
    )
    enabled = StrictBoolean(default=True)


class ScheduleChangeSerializer(ScheduleFields):
    """Changes to a schedule. Omitted fields keep their values."""

    name = FilledText(max_length=100, required=False)
    cron = Text(max_length=100, required=False)
    timezone = Text(max_length=64, required=False)
    request = RequestField(required=False)
    window = WindowSerializer(required=False)
    sinceLastSuccess = StrictBoolean(required=False, help_text=SINCE_LAST_SUCCESS)
    misfire = serializers.ChoiceField(choices=Misfire.choices, required=False)
    enabled = StrictBoolean(
        required=False, help_text="`false` pauses the schedule. `true` resumes it with the next planned time."
    )
