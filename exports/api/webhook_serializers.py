"""Serializers that validate webhook requests, including the addresses that the URLs resolve to."""

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError

from config.platform.http.serializers import StrictBoolean, StrictSerializer
from config.platform.webhooks import url_guard
from config.platform.webhooks.models import EventType


@extend_schema_field(
    {
        "type": "array",
        "minItems": 1,
        "uniqueItems": True,
        "items": {"$ref": "#/components/schemas/WebhookEvent"},
    }
)
class EventsField(serializers.Field[list[str], Any, list[str], Any]):
    """Events to subscribe to. Errors are reported on the list, not on its items."""

    default_error_messages: ClassVar = {
        "invalid": f"Must be a list with one or more of: {', '.join(sorted(EventType.values))}.",
        "empty": "Must not be empty.",
        "duplicate": "Must not contain duplicates.",
    }

    def to_internal_value(self, data: Any) -> list[str]:
        if not isinstance(data, list) or any(event not in EventType.values for event in data):
            self.fail("invalid")
        if not data:
            self.fail("empty")
        if len(set(data)) < len(data):
            self.fail("duplicate")
        return list(data)


@extend_schema_field(
    {
        "type": "string",
        "format": "uri",
        "maxLength": url_guard.MAX_URL,
        "description": "https, without credentials or fragment. Must resolve to public addresses. Each delivery "
        "checks this again.",
    }
)
class ReceiverField(serializers.Field[str, Any, str, Any]):
    """URL of a webhook. The validation resolves its host by DNS."""

    default_error_messages: ClassVar = {"invalid": "Must be a string."}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        try:
            url_guard.check(data)
        except url_guard.UrlRefused as refused:
            raise ValidationError([ErrorDetail(refused.detail, code=refused.code)]) from None
        return data


class NewWebhookSerializer(StrictSerializer):
    """URL and events of a new webhook."""

    url = ReceiverField()
    events = EventsField()


class WebhookChangeSerializer(StrictSerializer):
    """Changes to a webhook. Omitted fields keep their values."""

    url = ReceiverField(required=False)
    events = EventsField(required=False)
    enabled = StrictBoolean(
        required=False, help_text="`true` resets the failure count and sends the pending deliveries."
    )
