"""Types of response bodies, for the OpenAPI document. `representation` builds the bodies."""

from datetime import datetime
from typing import Annotated, Any, TypedDict

from rules.library.serializers import ModeField


class Rule(TypedDict):
    """A rule that defines how the Markdown of a document becomes JSON."""

    rule_id: int
    name: str
    description: str
    json_schema: Annotated[dict[str, Any] | None, "JSON Schema of the results. Null only with `skip`."]
    system_prompt: str
    postprocess_mode: Annotated[str, ModeField]
    postprocess_strategy: Annotated[str | None, "Null: chosen by the length of the document."]
    require_complete: Annotated[
        bool, "Whether a task fails if pages are missing or uncertain, or if items do not match the schema."
    ]
    version: Annotated[int, "Increases by one with every change."]
    is_system: Annotated[bool, "Whether this is a system rule, which is read-only and available to all users."]
    created_at: datetime
    updated_at: datetime
