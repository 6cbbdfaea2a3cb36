"""Base class and helpers of the rule pages. Rate limits are those of the API."""

from config.platform.ui.base import Page
from rules.api import rates

MOST_DIGITS = 18  # of a bigint


class RulesPage(Page):
    throttle = rates.DocumentThrottle


def number_in(text: str) -> int:
    """Return the number in a query or form field, 0 if it is invalid."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < MOST_DIGITS else 0
