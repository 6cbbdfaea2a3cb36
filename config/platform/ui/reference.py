"""The API reference at `/api/docs`, rendered on the server. It is the same for all users, and rendered once."""

from functools import cache
from typing import Any

from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.views.generic import TemplateView

from config.platform.http.audit import NOTHING
from config.platform.http.openapi.reference import reference


class ApiReference(TemplateView):
    audited = NOTHING
    template_name = "docs.html"
    http_method_names = ("get", "head", "options")

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(reference=reference(), operations=operations_html(), title="API", **context)


@cache
def operations_html() -> SafeString:
    return render_to_string("docs/_operations.html", {"sections": reference().sections})
