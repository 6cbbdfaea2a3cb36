"""Completed documents with data, for tests of corrections and approvals."""

from typing import Any

from django.contrib.auth.models import User

from config.platform import exact_json
from etl.core.stage_context import Usage
from etl.core.states import Stage
from etl.models import Task
from etl.pipeline import artifacts, completion
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.etl_progress import begin, read

LINE = {
    "type": "object",
    "properties": {"item": {"type": "string"}, "quantity": {"type": "integer"}, "price": {"type": "number"}},
    "required": ["item"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "number": {"type": "string", "description": "As printed at the top"},
        "date": {"type": ["string", "null"], "format": "date"},
        "kind": {"type": "string", "enum": ["invoice", "credit note"]},
        "paid": {"type": ["boolean", "null"]},
        "total": {"type": "number"},
        "supplier": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "vat": {"type": ["string", "null"]}},
        },
        "lines": {"type": "array", "items": LINE},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["number", "total"],
    "additionalProperties": False,
}
# Text, not an object, so that numbers keep their digits.
DATA = """{
  "number": "INV-17", "date": "2024-02-29", "kind": "invoice", "paid": false, "total": 90071992547409.930,
  "supplier": {"name": "Bright Lamps Ltd", "vat": null},
  "lines": [
    {"item": "Desk lamp", "quantity": 12, "price": 31.50},
    {"item": "Floor lamp", "quantity": 3, "price": 89.00},
    {"item": "Bulb", "quantity": 1, "price": 2.10}
  ]
}"""
CITED = ("/number", "/total", "/supplier/name", *(f"/lines/{n}/{name}" for n in range(3) for name in ("item", "price")))
CITATIONS = [
    {"pointer": pointer, "page": 1, "bbox": [0, 0, 9, 9], "quote": f"Quote of {pointer}", "match": "exact"}
    for pointer in CITED
]


def make_invoice(user: User, data: str = DATA, **changes: Any) -> Task:
    """Create a completed document with data, as from a rule that uses a language model."""
    rule = make_rule(user, mode="llm", name="Invoices", json_schema=SCHEMA)
    task = make_task(user, rule=rule, **changes)
    read(task)
    extract(task, data)
    return task


def extract(task: Task, data: str = DATA) -> None:
    """Finish post-processing with this data."""
    state = begin(task, Stage.POSTPROCESS)
    provenance = {"strategy": "direct-json", "model": "small", "usage": Usage(calls=1).as_dict(), "warnings": []}
    output = {
        "markdown_s3_key": state.markdown_key,
        "provider_task_id": "t",
        "metadata": {"provenance": provenance},
        "data": exact_json.loads(data),
        "citations": CITATIONS,
    }
    completion.complete(state, artifacts.commit(artifacts.output_key(state), output, check=lambda: None))
