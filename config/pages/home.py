"""The first page: what this is, and where to go from here."""

from typing import Any

from django.views.generic import TemplateView


class Home(TemplateView):
    template_name = "home.html"
    http_method_names = ("get", "head", "options")

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(base=self.request.build_absolute_uri("/").rstrip("/"), **context)
