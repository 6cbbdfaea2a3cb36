"""The product's paths, and before them that of a view which signs its user in, counts for the rates, and has nothing to
say: authentication, permissions, throttles, parsers and renderer are the product's defaults."""

from django.urls import include, path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView


class Empty(APIView):
    def get(self, request: Request) -> Response:
        return Response({"ok": True})


urlpatterns = [path("empty", Empty.as_view()), path("", include("config.urls"))]
