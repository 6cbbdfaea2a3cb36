"""Sluice's URLs, with an additional empty view.

The view uses the default authentication, permissions, throttles, parsers, and renderer.
"""

from django.urls import include, path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView


class Empty(APIView):
    def get(self, request: Request) -> Response:
        return Response({"ok": True})


urlpatterns = [path("empty", Empty.as_view()), path("", include("config.urls"))]
