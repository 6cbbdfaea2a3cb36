"""What the pages of rules share: they count like the same requests of the API."""

from config.pages.base import Page
from rules import rates


class RulesPage(Page):
    throttle = rates.PerUser
