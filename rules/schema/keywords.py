"""Unknown keywords in schemas. They are reported for rule files, because validators ignore typos."""

from collections.abc import Iterator
from typing import Any

from config.platform.http.pointers import join
from config.platform.http.problems import InputError
from rules.schema.extensions import CHECKS
from rules.schema.subschemas import Parts, refusal

# Keywords of https://json-schema.org/draft/2020-12/schema, and their names in earlier drafts.
CORE = (
    "$schema $id id $ref $anchor $dynamicRef $dynamicAnchor $recursiveRef $recursiveAnchor $vocabulary $comment $defs"
    " definitions"
)
APPLICATORS = (
    "prefixItems items contains additionalProperties properties patternProperties dependentSchemas propertyNames if"
    " then else allOf anyOf oneOf not unevaluatedItems unevaluatedProperties additionalItems dependencies"
)
ASSERTIONS = (
    "type const enum multipleOf maximum exclusiveMaximum minimum exclusiveMinimum maxLength minLength pattern maxItems"
    " minItems uniqueItems maxContains minContains maxProperties minProperties required dependentRequired"
)
ANNOTATIONS = (
    "title description default deprecated readOnly writeOnly examples format contentEncoding contentMediaType"
    " contentSchema"
)
KEYWORDS = frozenset(f"{CORE} {APPLICATORS} {ASSERTIONS} {ANNOTATIONS}".split()) | CHECKS.keys()


def unknown_keywords(schema: dict[str, Any]) -> Iterator[InputError]:
    """Yield an error for each unknown keyword. The schema must have passed `json_schema.check`."""
    for pointer, part in Parts(schema).parts.items():
        for name in part.schema:
            if name not in KEYWORDS:
                detail = (
                    "This keyword is unknown. If it is part of a text, put the text in quotation marks, because YAML"
                    " reads commas and colons as its own."
                )
                yield refusal(join(pointer, name), "unknown_keyword", detail)
