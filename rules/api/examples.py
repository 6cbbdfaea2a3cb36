"""Example requests and responses for the OpenAPI document: a rule for parking tickets.

`tests/contract/test_document.py` validates each example against its schema.
"""

from typing import Any

NEW_RULE: dict[str, Any] = {
    "name": "Parking ticket",
    "json_schema": {
        "type": "object",
        "properties": {
            "plate": {"type": ["string", "null"], "description": "The registration, as printed."},
            "amount": {"type": ["number", "null"], "description": "The amount paid, without the currency."},
        },
        "required": ["plate", "amount"],
        "additionalProperties": False,
    },
    "system_prompt": "You read parking tickets. Return what is printed, and null for what is missing.",
}
SAVED_RULE: dict[str, Any] = {
    "rule_id": 3,
    "name": NEW_RULE["name"],
    "description": "",
    "json_schema": NEW_RULE["json_schema"],
    "system_prompt": NEW_RULE["system_prompt"],
    "postprocess_mode": "llm",
    "postprocess_strategy": None,
    "require_complete": False,
    "version": 1,
    "is_system": False,
    "created_at": "2026-03-01T09:00:00.000000Z",
    "updated_at": "2026-03-01T09:00:00.000000Z",
}
PROMPT = "You read parking tickets of Lyon. Return what is printed, and null for what is missing."
CHANGED_RULE = {**SAVED_RULE, "system_prompt": PROMPT, "version": 2, "updated_at": "2026-03-01T09:20:11.304000Z"}
