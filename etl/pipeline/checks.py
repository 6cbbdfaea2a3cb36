"""What `manage.py check`, and with it `migrate`, says of settings that are well-formed and do not fit."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as Concern
from django.utils.module_loading import import_string

from config.platform.startup import TAG
from etl.postprocessors.base import PostProcessor
from etl.providers.base import OCRProvider

LONGEST_MODE = 32  # characters, as a rule's column has


@register(TAG)
def seams(**_later: Any) -> list[CheckMessage]:
    return [*strategy(), *provider(), *processors(), *model()]


def strategy() -> list[CheckMessage]:
    name = settings.SLUICE.etl_postprocess_long_strategy
    if name in settings.ETL_STRATEGIES:
        return []
    known = ", ".join(settings.ETL_STRATEGIES)
    return [Error(f"ETL_POSTPROCESS_LONG_STRATEGY names no strategy: {known}.", id="etl.E001")]


def provider() -> list[CheckMessage]:
    name = settings.SLUICE.etl_ocr_provider
    path = settings.ETL_OCR_PROVIDERS.get(name, name)
    try:
        found = import_string(path)
    except ImportError:
        return [Error(f"ETL_OCR_PROVIDER: {path} cannot be imported.", id="etl.E002")]
    if not (isinstance(found, type) and issubclass(found, OCRProvider)):
        return [Error(f"ETL_OCR_PROVIDER: {path} is no OCRProvider.", id="etl.E003")]
    return []


def processors() -> list[CheckMessage]:
    """Each entry of ETL_POSTPROCESSORS is a class that knows its name there, and a name that a rule can hold."""
    return [fault for mode, path in settings.ETL_POSTPROCESSORS.items() for fault in processor(mode, path)]


def processor(mode: str, path: str) -> list[CheckMessage]:
    try:
        found = import_string(path)
    except ImportError:
        return [Error(f"ETL_POSTPROCESSORS: {path} cannot be imported.", id="etl.E004")]
    if not (isinstance(found, type) and issubclass(found, PostProcessor)):
        return [Error(f"ETL_POSTPROCESSORS: {path} is no PostProcessor.", id="etl.E005")]
    if getattr(found, "mode", None) != mode or len(mode) > LONGEST_MODE:
        hint = f"The name is the class' mode, of {LONGEST_MODE} characters at most."
        return [Error(f"ETL_POSTPROCESSORS: {path} does not serve {mode}.", hint=hint, id="etl.E006")]
    return []


def model() -> list[CheckMessage]:
    if settings.SLUICE.etl_llm_base_url and not settings.SLUICE.etl_llm_model:
        hint = "Rules with the mode llm will fail with llm_unavailable."
        return [Concern("ETL_LLM_BASE_URL is set, and ETL_LLM_MODEL is not.", hint=hint, id="etl.W001")]
    return []
