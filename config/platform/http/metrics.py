"""`GET /metrics` in Prometheus' text format."""

import prometheus_client
from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.views import APIView

from config.platform.http import scopes
from config.platform.http.addresses import client_address, within
from config.platform.http.audit import NOTHING
from config.platform.http.negotiation import IgnoreAccept
from config.platform.http.openapi.responses import problems
from config.platform.http.problems import NotPermitted
from config.platform.observability.exposition import exposition


class Metrics(APIView):
    """Metrics for Prometheus, limited to addresses in METRICS_ALLOW_CIDRS and staff."""

    audited = NOTHING
    throttle_classes = ()
    permission_classes = ()  # the view checks the address, which works without the database, or the user
    content_negotiation_class = IgnoreAccept

    @extend_schema(
        operation_id="metrics",
        tags=["operations"],
        summary="Get metrics",
        description="Metrics of all processes that share a metrics folder. Available to staff, and without "
        "authentication to addresses in METRICS_ALLOW_CIDRS.",
        responses={
            (200, "text/plain"): OpenApiResponse(
                OpenApiTypes.STR,
                "Prometheus' text format.",
                [
                    OpenApiExample(
                        "Two lines", '# TYPE export_chunks_total counter\nexport_chunks_total{outcome="live"} 1095.0\n'
                    )
                ],
            ),
            **problems(NotPermitted),
        },
    )
    def get(self, request: Request) -> HttpResponse:
        if not (is_scraper(request) or scopes.is_unlimited_staff(request)):
            raise NotPermitted("Metrics are available to addresses in METRICS_ALLOW_CIDRS and to staff only.")
        return HttpResponse(exposition(), content_type=prometheus_client.CONTENT_TYPE_LATEST)


def is_scraper(request: Request) -> bool:
    address = client_address(request._request)
    return address is not None and within(address, settings.SLUICE.metrics_allow_cidrs)
