"""The configured provider and processors, each made once in a process: after the fork, when it is first needed."""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache

from django.conf import settings
from django.utils.module_loading import import_string

from etl.core.errors import LlmForbidden
from etl.core.formats import DocumentFormat
from etl.postprocessors.base import PostProcessor
from etl.providers.base import OCRProvider


def provider() -> OCRProvider:
    """Return the provider that ETL_OCR_PROVIDER names: one of ours, or a dotted path."""
    name: str = settings.SLUICE.etl_ocr_provider
    return _provider(settings.ETL_OCR_PROVIDERS.get(name, name))


def formats() -> list[DocumentFormat]:
    """Return what the configured provider takes, in the order to name it in."""
    return sorted(provider().formats, key=list(DocumentFormat).index)


def providers() -> Iterator[tuple[str, OCRProvider]]:
    """Yield those of ETL_OCR_PROVIDERS that can be used here, by name; each is made when its turn comes."""
    for name, path in settings.ETL_OCR_PROVIDERS.items():
        with suppress(ImportError):
            yield name, _provider(path)


def processor(mode: str) -> PostProcessor:
    """Return the processor that serves a rule's `postprocess_mode`. Raises LlmForbidden: the entry may be gone since
    the rule was saved, or be missing in this process."""
    if mode not in settings.ETL_POSTPROCESSORS:
        raise LlmForbidden(f"There is no mode {mode[:40]} here: see ETL_POSTPROCESSORS.")
    return _processor(settings.ETL_POSTPROCESSORS[mode])


@cache
def _provider(path: str) -> OCRProvider:
    made: OCRProvider = import_string(path)()
    return made


@cache
def _processor(path: str) -> PostProcessor:
    made: PostProcessor = import_string(path)()
    return made
