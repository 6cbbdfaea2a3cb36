"""The home page, and the 404 page."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.views.defaults import page_not_found
from django.views.generic import TemplateView

from config.platform.http.audit import NOTHING


class Home(TemplateView):
    """The home page for visitors. Signed-in users are redirected to their exports."""

    audited = NOTHING
    template_name = "config/home.html"
    http_method_names = ("get", "head", "options")

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.user.is_authenticated:
            return redirect("exports")
        return super().dispatch(request, *args, **kwargs)

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(base=self.request.build_absolute_uri("/").rstrip("/"), **context)


def not_found(request: HttpRequest, **_: str) -> HttpResponse:
    """Return the 404 page. With DEBUG, Django would list all URLs instead."""
    return page_not_found(request, Http404())
