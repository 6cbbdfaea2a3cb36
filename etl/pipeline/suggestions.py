"""Suggested fields for a rule, which a language model derives from the text of a sample document.

A suggestion is a trial of a rule that requests fields instead of values. So the quotas, budgets, and limits of trials
apply, and their protection from prompt injection.
"""

from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import User

from etl.pipeline import trial
from etl.postprocessors.llm import DIRECT
from rules.library.content import RuleContent
from rules.models import LLM

MAX_TEXT = 20_000  # characters: the beginning shows the kind of document
MAX_FIELDS = 40
PROMPT = """\
The document is a sample of a kind of documents. Do not extract its values. List the fields that a program should \
extract from each document of this kind, in the order of the page: what identifies it, parties, dates, amounts, and \
tables.
"name": a short name in English, in snake_case. "kind": "date" for dates, "number" for amounts without their \
currency, "objects" for the rows of a table, whose columns are its "fields". "description": one short sentence that \
says where the value stands and how it is written. "required": whether each document of this kind has it."""
LEAVES = ["string", "number", "integer", "boolean", "date", "strings"]


def field(kinds: list[str], **more: Any) -> dict[str, Any]:
    properties = {
        "name": {"type": "string"},
        "kind": {"enum": kinds},
        "description": {"type": "string"},
        "required": {"type": "boolean"},
        **more,
    }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


COLUMNS = {"type": ["array", "null"], "items": field(LEAVES), "maxItems": MAX_FIELDS}
FIELDS = {"type": "array", "items": field([*LEAVES, "objects"], fields=COLUMNS), "maxItems": MAX_FIELDS}
SCHEMA = {"type": "object", "properties": {"fields": FIELDS}, "required": ["fields"], "additionalProperties": False}


def run(markdown: str, *, rule_id: int, user: User, before_wait: Callable[[], None]) -> dict[str, Any]:
    """Return the outcome of the trial. Its data has `fields`: name, kind, description, required, and fields for tables.

    `rule_id`: the rule whose budget is charged, 0 for none. Raises the errors of `trial.run`.
    """
    suggestion_rule = RuleContent(
        rule_id=rule_id, version=0, name="", mode=LLM, strategy=DIRECT, json_schema=SCHEMA, system_prompt=PROMPT
    )
    return trial.run(suggestion_rule, markdown=markdown[:MAX_TEXT], user=user, before_wait=before_wait)
