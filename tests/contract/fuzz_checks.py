"""A check and a hook for schemathesis. C4.

The built-in check `positive_data_acceptance` accepts any 4xx response to input that matches the document. Here, such
input may only be refused for reasons that a schema cannot express.
"""

import itertools
import re
from typing import Any

import schemathesis

KEY = "Idempotency-Key"
# Error codes that do not depend on the format of the request alone, each with a pattern of its possible pointers.
KNOWN_REASONS = {
    "unknown_dataset": r"(/request)?/dataset",
    "unknown_column": r"(/request)?/columns/\d+",
    "unknown_version": r"/version",
    "unknown_task": r"/task_id",
    "unknown_rule": r"/rule_id|(/request)?/filters/ruleId|/request/ruleId",
    "unknown_batch": r"(/request)?/filters/batchId|/request/batchId",
    "unknown_file": r"/file_key|/file_keys/\d+|/prefix",  # no such file in the inbox
    "too_many_chunks": r"/items|/filters|/request/keys",
    # Required unless postprocess_mode is `skip`. A dataset requires either keys or filters.
    "required": r"/json_schema|/file|/file_keys|/request/keys|(/request)?/filters(/\w+)?|/items",
    "empty_document": r"/file|/size",
    "invalid": r"/cursor|/items/\d+/key|/filters/keys/\d+|/filters/dateTo|/csv|/url"
    r"|/columns|/items|/rows|/a|/b|/q|(/request)?/name|/batch_id|/prefix|/rule_id|/task_id|/to|/cron|/timezone|/window/to|/request/keys/\d+|/expected.*",
    # Some datasets support only some formats. The modes depend on the configured processors.
    "invalid_choice": r"(/request)?/(format|compression)|/postprocess_mode",
    "unsupported_format": r"/file(/\d+)?",  # the provider accepts fewer formats
    "invalid_schema": r"/json_schema.*",
    "too_large": r"/json_schema.*",
    "unknown_field": r"(?s)/request/.*|/filters/\w+|/items|/columns",  # the fields depend on the dataset
    "repeated": r"/file_keys/\d+",
    "malformed": r"/expected",  # a string that must contain JSON
    "null": r"/expected",
    "max_value": r"/deliveryTtlSeconds",  # the limit is a setting
    "schema_validation": r"/expected.*|/data.*",
    "blank": r"(/request)?/name|/markdown|/file_key|/request/dataset",  # white space only
    "not_https": r"/url",
    "private_address": r"/url",
    "nul": r".*",
}
KNOWN_CODES = {"file_too_large", "unsupported_format", "idempotency_key_reused"}
numbers = itertools.count()


@schemathesis.check
def valid_input_is_refused_for_known_reasons(ctx: Any, response: Any, case: Any) -> None:
    if response.status_code not in (400, 413, 415, 422) or not case.meta.generation.mode.is_positive:
        return
    problem = response.json()
    if problem["code"] in KNOWN_CODES:
        return
    assert "errors" in problem, problem
    for error in problem["errors"]:
        pointers = KNOWN_REASONS.get(error["code"], "-")
        assert re.fullmatch(pointers, error["pointer"]) or is_float(case.body, error["pointer"]), (
            f"{error}: {case.body}"
        )


def is_float(body: Any, pointer: str) -> bool:
    """Return whether a value is a float such as 3.0. JSON Schema accepts it as an integer, but the API refuses it."""
    for name in pointer.split("/")[1:]:
        if not isinstance(body, dict):
            return False
        body = body.get(name)
    return isinstance(body, float)


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Any) -> None:
    """Make valid idempotency keys unique, because a repeated key is answered before the body is checked."""
    key = (case.headers or {}).get(KEY)
    if isinstance(key, str) and re.fullmatch("[!-~]{1,200}", key):
        case.headers[KEY] = f"{key}-{next(numbers)}"
