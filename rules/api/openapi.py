"""What the OpenAPI schema says of each operation on rules: what it is for, what it costs, what comes next.

Each name here is the keyword arguments of an `extend_schema`, beside its name, request and problems; those are the
views'. Nothing here runs when a request is answered.
"""

from typing import Any

from drf_spectacular.utils import OpenApiExample

from config.platform.http.openapi.responses import REQUEST_ID, Answer, answered, asked, location, to
from config.platform.http.problems import CONTENT_TYPE
from rules.api import examples, schemas

TAGS = ["rules"]
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
MADE = Answer(
    schemas.Rule,
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
    "examples": [answered("A rule", examples.KEPT)],
}
CREATE: dict[str, Any] = {
    "summary": "Make a rule",
    "description": """How documents become JSON: what results fit, and what the model is told. `json_schema` has at most
64 KB and 32 levels; its references lead inside it, and its patterns have no look-around. What is wrong in it is told by
its place, `/json_schema/properties/total/type`. Try the rule by `POST …/rules/{rule_id}/test` before documents are put
through it.""",
    "parameters": [location(201, "The rule.")],
    "examples": [asked("A rule", examples.TICKET), answered("Made", examples.KEPT, status=201), REFUSED],
}
GET: dict[str, Any] = {
    "summary": "Look at a rule",
    "description": "As it is now. Tasks keep the version that they were submitted with.",
    "examples": [answered("A rule", examples.KEPT)],
}
REPLACE: dict[str, Any] = {
    "summary": "Replace what a rule says",
    "description": "All of it: what is left out has its default. A change makes a new version; tasks keep theirs. "
    "System rules are read-only: 403, make one of your own from what it says.",
    "examples": [
        asked("Another prompt", {**examples.TICKET, "system_prompt": examples.PROMPT}),
        answered("Replaced", examples.CHANGED),
    ],
}
CHANGE: dict[str, Any] = {
    "summary": "Change a rule",
    "description": "What is left out stays as it is. A change makes a new version; tasks keep theirs. System rules are "
    "read-only: 403, make one of your own from what it says.",
    "examples": [asked("Another prompt", {"system_prompt": examples.PROMPT}), answered("Changed", examples.CHANGED)],
}
DELETE: dict[str, Any] = {
    "summary": "Delete a rule",
    "description": "Tasks that were submitted with it keep what it said, and can be retried.",
}
