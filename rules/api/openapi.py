"""OpenAPI texts, parameters, and examples of the operations on rules.

Most constants are keyword arguments of `operation`. The views add the operation ID, the request, and the problems.
Requests do not use this module.
"""

from functools import partial
from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema

from config.platform.http.openapi.responses import (
    REQUEST_ID,
    LinkedResponse,
    link_to,
    location,
    request_example,
    response_example,
)
from config.platform.http.problems import CONTENT_TYPE
from rules.api import examples, schemas

operation = partial(extend_schema, tags=["rules"])
RULE = {"rule_id": "$response.body#/rule_id"}
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
CREATED = LinkedResponse(
    schemas.Rule,
    "The first version of the rule.",
    rule=link_to("getRule", "Get it.", **RULE),
    test=link_to("testRule", "Test it on Markdown.", **RULE),
    change=link_to("changeRule", "Update it.", **RULE),
    replace=link_to("replaceRule", "Replace it.", **RULE),
    delete=link_to("deleteRule", "Delete it.", **RULE),
)
LIST: dict[str, Any] = {
    "summary": "List rules",
    "description": "Returns your rules and the system rules, newest first. Staff can read all rules.",
    "examples": [response_example("A rule", examples.SAVED_RULE)],
}
CREATE: dict[str, Any] = {
    "summary": "Create a rule",
    "description": """A rule defines how documents become JSON: the schema of the results, and the prompt for the model.
`json_schema` is limited to 64 KB and 32 levels; references must stay inside the schema, and patterns cannot use
look-around. Each error in it has a pointer to its location, such as `/json_schema/properties/total/type`. Test the rule
by `POST …/rules/{rule_id}/test` before you submit documents with it.""",
    "parameters": [location(201, "The rule.")],
    "examples": [
        request_example("A rule", examples.NEW_RULE),
        response_example("Created", examples.SAVED_RULE, status=201),
        REFUSED,
    ],
}
GET: dict[str, Any] = {
    "summary": "Get a rule",
    "description": "Returns the latest version. Tasks keep the version that they were submitted with.",
    "examples": [response_example("A rule", examples.SAVED_RULE)],
}
REPLACE: dict[str, Any] = {
    "summary": "Replace a rule",
    "description": "Replaces all fields; omitted fields get their defaults. A change creates a new version, and "
    "existing tasks keep theirs. System rules are read-only (403): create your own rule with the same content.",
    "examples": [
        request_example("Another prompt", {**examples.NEW_RULE, "system_prompt": examples.PROMPT}),
        response_example("Replaced", examples.CHANGED_RULE),
    ],
}
CHANGE: dict[str, Any] = {
    "summary": "Update a rule",
    "description": "Omitted fields keep their values. A change creates a new version, and existing tasks keep theirs. "
    "System rules are read-only (403): create your own rule with the same content.",
    "examples": [
        request_example("Another prompt", {"system_prompt": examples.PROMPT}),
        response_example("Updated", examples.CHANGED_RULE),
    ],
}
DELETE: dict[str, Any] = {
    "summary": "Delete a rule",
    "description": "Deletes the rule. Tasks that were submitted with it keep its content and can be retried.",
}
