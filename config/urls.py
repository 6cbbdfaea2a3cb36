"""All paths. Those of the contract end without a slash."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.renderers import (
    OpenApiJsonRenderer,
    OpenApiJsonRenderer2,
    OpenApiYamlRenderer,
    OpenApiYamlRenderer2,
)
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

from config import health, metrics, pages

# JSON unless Accept wants YAML: JSON is YAML too, so that every client can read it.
SCHEMA_RENDERERS = [OpenApiJsonRenderer, OpenApiJsonRenderer2, OpenApiYamlRenderer, OpenApiYamlRenderer2]

urlpatterns = [
    path("", pages.Home.as_view(), name="home"),
    path("livez", health.Live.as_view()),
    path("readyz", health.Ready.as_view(), name="ready"),
    path("metrics", metrics.Metrics.as_view()),
    path(
        "api/schema", SpectacularAPIView.as_view(renderer_classes=SCHEMA_RENDERERS, throttle_classes=()), name="schema"
    ),
    path("api/docs", SpectacularSwaggerView.as_view(url_name="schema", throttle_classes=()), name="docs"),
    path("admin/", admin.site.urls),
    path("", include("exports.urls")),
    path("", include("etl.urls")),
    path("", include("rules.urls")),
]
