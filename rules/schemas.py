"""How rules look, for the OpenAPI schema alone: nothing here runs when a request is answered."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework import serializers

from config.api.problems import CONTENT_TYPE
from config.api.schema import REQUEST_ID, Answer, answered, asked, to
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
    "created_at": "2026-03-01T09:00:00.000000Z",
    "updated_at": "2026-03-01T09:00:00.000000Z",
}
PROMPT = "You read parking tickets of Lyon. Give what is printed; null for what is not."
CHANGED = {**KEPT, "system_prompt": PROMPT, "version": 2, "updated_at": "2026-03-01T09:20:11.304000Z"}
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
        "requestId": REQUEST_ID,
    },
    response_only=True,
    status_codes=["400"],
    media_type=CONTENT_TYPE,
)


# ---- Operations -----------------------------------------------------------------------------------------------------
# What each of them is for, what it costs, what comes next: the keyword arguments of its `extend_schema`.

RULE = {"rule_id": "$response.body#/rule_id"}
MADE = Answer(
    Rule,
    "Its first version.",
    rule=to("getRule", "Look at it.", **RULE),
    test=to("testRule", "Try it on Markdown.", **RULE),
    change=to("changeRule", "Change it.", **RULE),
    replace=to("replaceRule", "Replace it.", **RULE),
    delete=to("deleteRule", "Delete it.", **RULE),
)
LIST: dict[str, Any] = {
    "summary": "List the rules I can use",
    "description": "My own and the system's, newest first. Staff see all.",
    "examples": [answered("A rule", KEPT)],
}
CREATE: dict[str, Any] = {
    "summary": "Make a rule",
    "description": """How documents become JSON: what results fit, and what the model is told. `json_schema` has at most
64 KB and 32 levels; its references lead inside it, and its patterns have no look-around. What is wrong in it is told by
its place, `/json_schema/properties/total/type`. Try the rule by `POST …/rules/{rule_id}/test` before documents are put
through it.""",
    "parameters": [LOCATION],
    "examples": [asked("A rule", TICKET), answered("Made", KEPT, status=201), REFUSED],
}
GET: dict[str, Any] = {
    "summary": "Look at a rule",
    "description": "As it is now. Tasks keep the version that they were submitted with.",
    "examples": [answered("A rule", KEPT)],
}
REPLACE: dict[str, Any] = {
    "summary": "Replace what a rule says",
    "description": "All of it: what is left out has its default. A change makes a new version; tasks keep theirs. "
    "System rules are read-only: 403, make one of your own from what it says.",
    "examples": [asked("Another prompt", {**TICKET, "system_prompt": PROMPT}), answered("Replaced", CHANGED)],
}
CHANGE: dict[str, Any] = {
    "summary": "Change a rule",
    "description": "What is left out stays as it is. A change makes a new version; tasks keep theirs. System rules are "
    "read-only: 403, make one of your own from what it says.",
    "examples": [asked("Another prompt", {"system_prompt": PROMPT}), answered("Changed", CHANGED)],
}
DELETE: dict[str, Any] = {
    "summary": "Delete a rule",
    "description": "Tasks that were submitted with it keep what it said, and can be retried.",
}
