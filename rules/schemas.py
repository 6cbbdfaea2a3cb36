"""How rules look, for the OpenAPI schema alone: nothing here runs when a request is answered."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework import serializers

from config.api.problems import CONTENT_TYPE
from rules.serializers import ModeField

TAGS = ["rules"]


class Rule(serializers.Serializer):
    """How a document's Markdown becomes JSON."""

    rule_id = serializers.IntegerField()
    name = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    json_schema = serializers.DictField(allow_null=True, help_text="What results fit; null only with skip.")
    system_prompt = serializers.CharField(allow_blank=True)
    postprocess_mode = ModeField()
    postprocess_strategy = serializers.CharField(allow_null=True, help_text="Null: by the length of the document.")
    version = serializers.IntegerField(help_text="Grows by one with every change.")
    is_system = serializers.BooleanField(help_text="Everybody's, and nobody's to change.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


LOCATION = OpenApiParameter(
    "Location", OpenApiTypes.URI_REF, "header", required=True, response=[201], description="The rule."
)

# ---- Examples -------------------------------------------------------------------------------------------------------

TICKET: dict[str, Any] = {
    "name": "Parking ticket",
    "json_schema": {
        "type": "object",
        "properties": {
            "plate": {"type": ["string", "null"], "description": "The registration, as printed."},
            "amount": {"type": ["number", "null"], "description": "What was paid, without the currency."},
        },
        "required": ["plate", "amount"],
        "additionalProperties": False,
    },
    "system_prompt": "You read parking tickets. Give what is printed; null for what is not.",
}
KEPT: dict[str, Any] = {
    "rule_id": 3,
    "name": TICKET["name"],
    "description": "",
    "json_schema": TICKET["json_schema"],
    "system_prompt": TICKET["system_prompt"],
    "postprocess_mode": "llm",
    "postprocess_strategy": None,
    "version": 1,
    "is_system": False,
    "created_at": "2025-03-01T09:00:00.000000Z",
    "updated_at": "2025-03-01T09:00:00.000000Z",
}
REFUSED = OpenApiExample(
    "Refused",
    {
        "type": "urn:problem:sluice:invalid",
        "title": "Bad Request",
        "status": 400,
        "detail": "The input is not valid.",
        "code": "invalid",
        "errors": [
            {
                "pointer": "/json_schema/properties/amount/type",
                "code": "invalid_schema",
                "detail": "Must be one of array, boolean, integer, null, number, object, string, or a list of "
                "different ones.",
            }
        ],
        "requestId": "5d3f2c4e-7a1b-4c7e-9e39-0f8f5c9f2a10",
    },
    response_only=True,
    status_codes=["400"],
    media_type=CONTENT_TYPE,
)
CREATION = [
    OpenApiExample("A rule", TICKET, request_only=True),
    OpenApiExample("Made", KEPT, response_only=True, status_codes=["201"]),
    REFUSED,
]
CHANGE = [
    OpenApiExample("Another prompt", {"system_prompt": "You read parking tickets of Lyon."}, request_only=True),
    OpenApiExample("Changed", {**KEPT, "version": 2}, response_only=True, status_codes=["200"]),
]
