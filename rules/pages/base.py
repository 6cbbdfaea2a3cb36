"""Base class of the pages of rules, with the rate limits of the API."""

from config.platform.ui.base import Page
from rules.api import rates


class RulesPage(Page):
    throttle = rates.EtlThrottle
