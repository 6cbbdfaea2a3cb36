"""The product's URLs, and before them an empty view that authenticates its user and counts for the rate limits:
authentication, permissions, throttles, parsers, and renderer are the product's defaults.
"""

from django.urls import include, path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView


class Empty(APIView):
    def get(self, request: Request) -> Response:
        return Response({"ok": True})


urlpatterns = [path("empty", Empty.as_view()), path("", include("config.urls"))]
