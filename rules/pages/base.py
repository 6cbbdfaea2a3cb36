"""What the pages of rules share: they count like the same requests of the API."""

from typing import Any, cast

from django.http import HttpRequest, HttpResponse

from config.pages.base import Page, counted
from rules import rates


class RulesPage(Page):
    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        self.count()
        return super().get(request, *args, **kwargs)

    def count(self) -> None:
        """Count the request by ETL_RATE or ETL_POLL_RATE. Raises RateLimited."""
        rates.PerUser().allow_request(counted(self.request), cast("Any", self))
