"""System checks for settings that are well-formed but invalid. `manage.py check` and `migrate` run them."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning
from django.utils.module_loading import import_string

from config.platform.startup import TAG
from etl.postprocessors.base import PostProcessor
from etl.providers.base import OCRProvider

MAX_MODE = 32  # characters, the length of the column `postprocess_mode`


@register(TAG)
def check_extension_points(**_kwargs: Any) -> list[CheckMessage]:
    return [*strategy(), *provider(), *processors(), *model()]


def strategy() -> list[CheckMessage]:
    """Check that the strategy for long texts exists, and reads text, not page images."""
    name = settings.SLUICE.etl_postprocess_long_strategy
    known = [each for each, path in settings.ETL_STRATEGIES.items() if not import_string(path).reads_images]
    if name in known:
        return []
    return [Error(f"ETL_POSTPROCESS_LONG_STRATEGY must be one of: {', '.join(known)}.", id="etl.E001")]


def provider() -> list[CheckMessage]:
    name = settings.SLUICE.etl_ocr_provider
    path = settings.ETL_OCR_PROVIDERS.get(name, name)
    return import_errors("ETL_OCR_PROVIDER", path, OCRProvider, ids=("etl.E002", "etl.E003"))


def import_errors(setting: str, path: str, base: type, *, ids: tuple[str, str]) -> list[CheckMessage]:
    """Return an error unless the dotted path names a subclass of `base`."""
    try:
        found = import_string(path)
    except ImportError:
        return [Error(f"{setting}: {path} cannot be imported.", id=ids[0])]
    if not (isinstance(found, type) and issubclass(found, base)):
        return [Error(f"{setting}: {path} is not a subclass of {base.__name__}.", id=ids[1])]
    return []


def processors() -> list[CheckMessage]:
    """Check that each entry is a PostProcessor whose `mode` is its key and fits a rule's column."""
    return [fault for mode, path in settings.ETL_POSTPROCESSORS.items() for fault in processor(mode, path)]


def processor(mode: str, path: str) -> list[CheckMessage]:
    if errors := import_errors("ETL_POSTPROCESSORS", path, PostProcessor, ids=("etl.E004", "etl.E005")):
        return errors
    if getattr(import_string(path), "mode", None) != mode or len(mode) > MAX_MODE:
        hint = f"The key must be the class's `mode`, of at most {MAX_MODE} characters."
        return [Error(f"ETL_POSTPROCESSORS: {path} does not have the mode {mode}.", hint=hint, id="etl.E006")]
    return []


def model() -> list[CheckMessage]:
    if settings.SLUICE.etl_llm_base_url and not settings.SLUICE.etl_llm_model:
        hint = "Rules with the mode llm will fail with llm_unavailable."
        return [CheckWarning("ETL_LLM_BASE_URL is set, but ETL_LLM_MODEL is not.", hint=hint, id="etl.W001")]
    return []
