"""Labels and descriptions of modes and strategies. Custom ones are shown by their names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from django.conf import settings

from rules.library import requirements
from rules.pages import fields

MODES = {
    "llm": ("Extract with a language model", "The model reads the Markdown and returns JSON that matches the schema."),
    "einvoice": (
        "Read e-invoices",
        "Reads Factur-X, ZUGFeRD, XRechnung, and Peppol invoices exactly, without a model. Other files need one.",
    ),
    "skip": (
        "Markdown only",
        "The result is the Markdown text. No model is used; the schema and the prompt are ignored.",
    ),
}
STRATEGIES = {
    "": ("Automatic", "Short documents in one model call, long documents in pieces. Recommended for most rules."),
    "direct-json": (
        "Whole document",
        "One model call with the whole document. Most accurate, but limited by the model's context length.",
    ),
    "chunked-extract": (
        "Piece by piece",
        "Extracts values from each piece and merges them by the schema. For lists over many pages, such as invoices.",
    ),
    "chunked-summarize": (
        "Summary",
        "Summarizes each piece and extracts values from the summaries. For long prose, such as contracts.",
    ),
    "vision": (
        "Page images",
        "Shows the model the images of the pages. For scans, and scripts that OCR cannot read. Needs a vision model.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    value: str
    label: str
    description: str
    unmet: str = ""  # the requirement that is not met


def field_types() -> dict[str, str]:
    """Return the types of fields that can be chosen, with their labels."""
    return {name: label for name, label in fields.TYPES.items() if name != fields.OTHER}


def modes() -> list[Choice]:
    found = choices(settings.ETL_POSTPROCESSORS, MODES)
    return [
        replace(each, unmet=requirements.NO_MODEL) if requirements.lacks_model(each.value) else each for each in found
    ]


def strategies() -> list[Choice]:
    return choices(["", *settings.ETL_STRATEGIES], STRATEGIES)


def choices(names: Iterable[str], known: Mapping[str, tuple[str, str]]) -> list[Choice]:
    found = {name: known.get(name, (name, "Custom, added by the operator.")) for name in names}
    return [Choice(value=name, label=label, description=text) for name, (label, text) in found.items()]


def mode(name: str) -> str:
    return MODES[name][0] if name in MODES else name


def strategy(name: str) -> str:
    return STRATEGIES[name][0] if name in STRATEGIES else name
