"""Base class of the rule pages. Rate limits are those of the API."""

from config.platform.ui.base import Page
from rules.api import rates


class RulesPage(Page):
    throttle = rates.EtlThrottle
