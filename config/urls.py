"""URL configuration. Paths of the public API have no trailing slash."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.renderers import (
    OpenApiJsonRenderer,
    OpenApiJsonRenderer2,
    OpenApiYamlRenderer,
    OpenApiYamlRenderer2,
)
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

from config.platform.http import health, metrics
from config.platform.ui import home

# JSON by default, YAML if the Accept header asks for it. JSON is valid YAML, so every client can read it.
SCHEMA_RENDERERS = [OpenApiJsonRenderer, OpenApiJsonRenderer2, OpenApiYamlRenderer, OpenApiYamlRenderer2]

urlpatterns = [
    path("", include("config.platform.ui.urls")),
    path("", include("exports.pages.urls")),
    path("", include("exports.pages.webhook_urls")),
    path("", include("etl.pages.urls")),
    path("", include("etl.pages.rule_urls")),
    path("", include("rules.pages.urls")),
    path("livez", health.Live.as_view()),
    path("readyz", health.Ready.as_view(), name="ready"),
    path("metrics", metrics.Metrics.as_view()),
    path(
        "api/schema", SpectacularAPIView.as_view(renderer_classes=SCHEMA_RENDERERS, throttle_classes=()), name="schema"
    ),
    path(
        "api/docs",
        SpectacularSwaggerView.as_view(url_name="schema", template_name="docs.html", throttle_classes=()),
        name="docs",
    ),
    path("admin/", admin.site.urls),
    path("", include("exports.urls")),
    path("", include("etl.urls")),
    path("", include("rules.urls")),
    path("app/<path:rest>", home.nothing_here),  # last: the 404 page for all other paths
]
