"""What owners say of their webhooks: every field checked, and where one leads looked up, before anything is written."""

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError

from config.platform.http.serializers import StrictSerializer
from exports.api.serializers import StrictBoolean
from exports.webhooks import url_guard
from exports.webhooks.models import EventType


@extend_schema_field(
    {
        "type": "array",
        "minItems": 1,
        "uniqueItems": True,
        "items": {"$ref": "#/components/schemas/WebhookEvent"},
    }
)
class EventsField(serializers.Field[list[str], Any, list[str], Any]):
    """Which ends to be told of; whatever is wrong with the list is told at the list."""

    default_error_messages: ClassVar = {
        "invalid": f"Must be a list of some of: {', '.join(sorted(EventType.values))}.",
        "empty": "Must not be empty.",
        "duplicate": "Must not name an event twice.",
    }

    def to_internal_value(self, data: Any) -> list[str]:
        if not isinstance(data, list) or any(event not in EventType.values for event in data):
            self.fail("invalid")
        if not data:
            self.fail("empty")
        if len(set(data)) < len(data):
            self.fail("duplicate")
        return list(data)

    def to_representation(self, value: list[str]) -> list[str]:
        return value


@extend_schema_field(
    {
        "type": "string",
        "format": "uri",
        "maxLength": url_guard.MAX_URL,
        "description": "https, without credentials or fragment, at public addresses; looked at again at each delivery.",
    }
)
class ReceiverField(serializers.Field[str, Any, str, Any]):
    """A URL that webhooks may lead to, by what the DNS says now."""

    default_error_messages: ClassVar = {"invalid": "Must be a string."}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        try:
            url_guard.check(data)
        except url_guard.UrlRefused as refused:
            raise ValidationError([ErrorDetail(refused.detail, code=refused.code)]) from None
        return data

    def to_representation(self, value: str) -> str:
        return value


class NewWebhookSerializer(StrictSerializer):
    """Where to, and what of."""

    url = ReceiverField()
    events = EventsField()


class WebhookChangeSerializer(StrictSerializer):
    """What is left out stays as it is."""

    url = ReceiverField(required=False)
    events = EventsField(required=False)
    enabled = StrictBoolean(
        required=False, help_text="True begins anew: what failed is forgotten, what waits goes out."
    )
