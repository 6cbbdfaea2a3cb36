"""What the pages of rules share: they count like the same requests of the API, and read numbers alike."""

from config.platform.ui.base import Page
from rules.api import rates

MOST_DIGITS = 18  # of a bigint


class RulesPage(Page):
    throttle = rates.PerUser


def number_in(text: str) -> int:
    """Return the number that a part of a query or a form is, 0 for anything else."""
    return int(text) if text.isdecimal() and len(text) < MOST_DIGITS else 0
