"""Documents, rules, and response caches for tests of post-processing."""

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.conf import settings as configured
from pydantic import AnyHttpUrl, SecretStr
from redis import RedisError

from etl.core.errors import EtlError
from etl.core.stage_context import StageContext, Usage
from etl.postprocessors import server_features
from etl.providers.base import OCRResult, Page, page_marker
from rules.library.content import RuleContent
from tests.broker import valkey
from tests.conftest import change_settings
from tests.integration import openai_server
from tests.integration.openai_server import MODEL, ModelServer

KEY = "sk-test-key"
INVOICE = {
    "type": "object",
    "properties": {"number": {"type": "string"}, "total": {"type": "number"}},
    "required": ["number", "total"],
    "additionalProperties": False,
}
INVOICE_TEXT = "# Invoice INV-2024-17\n\nTotal due: 1,234.50 EUR"


def configure(settings: Any, models: ModelServer, **changes: Any) -> None:
    """Point the settings at a model server, and forget its known features."""
    values = {
        "etl_llm_base_url": AnyHttpUrl(models.url),
        "etl_llm_model": MODEL,
        "etl_llm_api_key": SecretStr(KEY),
        "etl_llm_timeout_seconds": 10.0,
    }
    change_settings(settings, **(values | changes))
    forget(models)


@contextmanager
def running_models(settings: Any) -> Iterator[ModelServer]:
    """Run a scripted model server, and point the settings at it."""
    # Otherwise, the first call would import this module, which takes up to a second of the call's time limit.
    importlib.import_module("openai.resources.chat.completions.completions")
    with openai_server.running() as server:
        configure(settings, server)
        yield server
        forget(server)


def forget(models: ModelServer) -> None:
    server_features.local_cache.clear()
    with suppress(RedisError):
        valkey().delete(features_key(models))


def features_key(models: ModelServer) -> str:
    """Return the Redis key of the server's features."""
    return f"{configured.SLUICE.etl_redis_prefix}{server_features.key_of(models.url, MODEL)}"


def ocr_of(*texts: str) -> OCRResult:
    """Return the OCR result of a document with these pages."""
    markdown, pages = "", []
    for number, text in enumerate(texts, 1):
        markdown += f"{page_marker(number)}\n\n"
        pages.append(Page(number=number, start=len(markdown), end=len(markdown) + len(text), method="text"))
        markdown += f"{text}\n\n"
    return OCRResult(markdown=markdown, pages=tuple(pages), provider="local", provider_task_id="t", metadata={})


def rule_of(schema: dict[str, Any] | None = None, **changes: Any) -> RuleContent:
    fields: dict[str, Any] = {"rule_id": 7, "version": 2, "name": "invoices", "mode": "llm"}
    return RuleContent(**({**fields, "json_schema": INVOICE if schema is None else schema} | changes))


class MemoryResponseCache:
    """A response cache in memory. Like the stored one, it keeps the first entry under a key, and accepts only JSON."""

    def __init__(self) -> None:
        self.run: dict[str, str] = {}
        self.task: dict[str, str] = {}

    def get(self, key: str) -> dict[str, Any] | None:
        found = self.run.get(key) or self.task.get(key)
        return json.loads(found) if found else None

    def put(self, key: str, entry: dict[str, Any], *, run: bool) -> None:
        (self.run if run else self.task).setdefault(key, json.dumps(entry))


def context_of(**changes: Any) -> StageContext:
    options: dict[str, Any] = {"seconds": 30, "secret": b"secret of the run"}
    return StageContext(**(options | changes))


class Killed(BaseException):
    """The end of the worker process."""


def kill(_usage: Usage) -> None:
    raise Killed


def codes(context: StageContext) -> list[str]:
    return [warning.code for warning in context.warnings]


def contains_no_private_data(error: EtlError, *secrets: str) -> bool:
    return not any(secret in f"{error.detail} {error!r}" for secret in (*secrets, KEY))
