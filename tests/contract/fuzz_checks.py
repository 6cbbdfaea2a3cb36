"""What schemathesis runs besides its own: a check, and a hook that keeps requests apart. C4.

schemathesis' `positive_data_acceptance` would have all input that fits the document taken, or any refusal. Here it may
be refused for reasons that no schema can express, and for nothing else.
"""

import itertools
import re
from typing import Any

import schemathesis

KEY = "Idempotency-Key"
# Reasons that depend on stored data, not on the request's format: codes, each with the pointers it may have.
KNOWN_REASONS = {
    "unknown_dataset": r"/dataset",
    "unknown_rule": r"/rule_id",
    "unknown_file": r"/file_key",
    "too_many_chunks": r"/items|/filters",
    "required": r"/json_schema",  # unless postprocess_mode is skip
    "empty_document": r"/file|/size",
    "invalid": r"/cursor|/items/\d+/key|/filters/keys/\d+|/filters/dateTo|/csv|/url",
    "invalid_choice": r"/format",  # some datasets come in some only
    "invalid_schema": r"/json_schema.*",
    "too_large": r"/json_schema.*",
    "blank": r"/name|/markdown|/file_key",  # white space alone
    "not_https": r"/url",
    "private_address": r"/url",
    "nul": r".*",
}
OTHERS = {"file_too_large", "unsupported_format"}
numbers = itertools.count()


@schemathesis.check
def good_input_is_refused_for_known_reasons(ctx: Any, response: Any, case: Any) -> None:
    if response.status_code not in (400, 413, 415, 422) or not case.meta.generation.mode.is_positive:
        return
    problem = response.json()
    if problem["code"] in OTHERS:
        return
    for error in problem["errors"]:
        places = KNOWN_REASONS.get(error["code"], "-")
        assert re.fullmatch(places, error["pointer"]) or is_float(case.body, error["pointer"]), f"{error}: {case.body}"


def is_float(body: Any, pointer: str) -> bool:
    """Tell whether 3.0 stands where 3 should: an integer to JSON Schema, and refused on purpose."""
    return isinstance(body, dict) and isinstance(body.get(pointer.removeprefix("/")), float)


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Any) -> None:
    """Make good keys different ones: a repeated one is answered before its body is looked at."""
    key = (case.headers or {}).get(KEY)
    if isinstance(key, str) and re.fullmatch("[!-~]{1,200}", key):
        case.headers[KEY] = f"{key}-{next(numbers)}"
