"""What modes and strategies do, in words for people. Those that an operator added are shown by their names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from django.conf import settings

from rules.library import requirements

MODES = {
    "llm": ("Extract with a language model", "The model reads the Markdown, and gives JSON that fits the schema."),
    "skip": ("Markdown only", "No model is asked; the result is the text. Schema and prompt are kept, and not used."),
}
STRATEGIES = {
    "": ("By length", "Short documents in one question, long ones in pieces. Right for most rules."),
    "direct-json": (
        "All at once",
        "The whole document in one question. The best answers, as long as it fits into what the model can read.",
    ),
    "chunked-extract": (
        "Piece by piece",
        "Values are taken from each piece and put together by the schema. For lists over many pages, such as invoices.",
    ),
    "chunked-summarize": (
        "By a summary",
        "Each piece is summed up, and the values are taken from the summaries. For long prose, such as contracts.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    value: str
    label: str
    about: str
    lacks: str = ""  # what it needs, and is not there


def modes() -> list[Choice]:
    found = choices(settings.ETL_POSTPROCESSORS, MODES)
    return [
        replace(each, lacks=requirements.NO_MODEL) if requirements.lacks_model(each.value) else each for each in found
    ]


def strategies() -> list[Choice]:
    return choices(["", *settings.ETL_STRATEGIES], STRATEGIES)


def choices(names: Iterable[str], known: Mapping[str, tuple[str, str]]) -> list[Choice]:
    found = {name: known.get(name, (name, "Added by the operator.")) for name in names}
    return [Choice(value=name, label=label, about=about) for name, (label, about) in found.items()]


def mode(name: str) -> str:
    return MODES[name][0] if name in MODES else name


def strategy(name: str) -> str:
    return STRATEGIES[name][0] if name in STRATEGIES else name
