"""The Content-Security-Policy of each page: strict, but for those that others wrote."""

from csp.middleware import CSPMiddleware
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase


class ContentSecurityPolicy(CSPMiddleware):
    """django-csp's middleware, with what some paths need beyond the policy of all: LOOSER_POLICIES, by prefix."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        for prefix, directives in settings.LOOSER_POLICIES.items():
            if request.path_info.startswith(prefix):
                response._csp_replace = directives  # type: ignore[attr-defined]
        return super().process_response(request, response)
