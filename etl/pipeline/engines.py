"""The configured provider and processors. Each is created once per process, on first use, after the fork."""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import Any, cast

from django.conf import settings
from django.utils.module_loading import import_string

from etl.core.errors import LlmForbidden
from etl.core.formats import DocumentFormat
from etl.postprocessors.base import PostProcessor
from etl.postprocessors.strategies.base import Strategy
from etl.providers.base import OCRProvider
from etl.providers.local import LocalProvider
from rules.library.content import RuleContent


def provider() -> OCRProvider:
    """Return the provider of ETL_OCR_PROVIDER: a name in ETL_OCR_PROVIDERS or a dotted path."""
    name: str = settings.SLUICE.etl_ocr_provider
    return cast("OCRProvider", instance(settings.ETL_OCR_PROVIDERS.get(name, name)))


def local() -> LocalProvider:
    """Return the local provider, which renders page images even if another provider is configured."""
    return cast("LocalProvider", instance(settings.ETL_OCR_PROVIDERS["local"]))


def reads_einvoices() -> bool:
    """Return whether the packages of the local provider that read e-invoices are installed."""
    return find_spec("facturx") is not None


def reader(kind: DocumentFormat) -> OCRProvider:
    """Return the provider for a format: the configured one, but for XML the local one, if it is installed.

    Other providers do not accept XML, and all e-invoices should be read.
    """
    return local() if kind == DocumentFormat.XML and reads_einvoices() else provider()


def formats() -> list[DocumentFormat]:
    """Return the accepted formats, in display order."""
    accepted = provider().formats | ({DocumentFormat.XML} if reads_einvoices() else frozenset())
    return sorted(accepted, key=list(DocumentFormat).index)


def providers() -> Iterator[tuple[str, OCRProvider]]:
    """Yield the names and providers of ETL_OCR_PROVIDERS whose libraries are installed."""
    for name, path in settings.ETL_OCR_PROVIDERS.items():
        with suppress(ImportError):
            yield name, instance(path)


def processor(mode: str) -> PostProcessor:
    """Return the processor of a rule's `postprocess_mode`.

    Raises LlmForbidden if the mode is not configured: it may have been removed since the rule was saved.
    """
    if mode not in settings.ETL_POSTPROCESSORS:
        raise LlmForbidden(f"The mode {mode[:40]} is not configured in ETL_POSTPROCESSORS.")
    return cast("PostProcessor", instance(settings.ETL_POSTPROCESSORS[mode]))


def reads_images(rule: RuleContent) -> bool:
    """Return whether the rule's strategy shows page images to a language model."""
    if rule.mode not in settings.ETL_POSTPROCESSORS or rule.strategy not in settings.ETL_STRATEGIES:
        return False
    strategy: type[Strategy] = import_string(settings.ETL_STRATEGIES[rule.strategy])
    return processor(rule.mode).asks_model and strategy.reads_images


@cache
def instance(path: str) -> Any:
    """Return this process's only instance of a class."""
    return import_string(path)()
