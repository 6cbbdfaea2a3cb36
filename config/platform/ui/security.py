"""The Content-Security-Policy of each page: strict, except for third-party pages."""

from csp.middleware import CSPMiddleware
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase


class ContentSecurityPolicy(CSPMiddleware):
    """django-csp's middleware with exceptions by path prefix: LOOSER_POLICIES."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        for prefix, directives in settings.LOOSER_POLICIES.items():
            if request.path_info.startswith(prefix):
                response._csp_replace = directives  # type: ignore[attr-defined]
        return super().process_response(request, response)
