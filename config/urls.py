"""URL configuration. Paths of the public API have no trailing slash."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularSwaggerView

from config.platform.http import health, metrics, token_views
from config.platform.http.openapi.document import SchemaView
from config.platform.ui import home

admin.autodiscover()

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
    path("tokens", token_views.TokenListView.as_view(), name="tokens"),
    path("tokens/<uuid:token_id>", token_views.TokenView.as_view(), name="token"),
    path("api/schema", SchemaView.as_view(), name="schema"),
    path(
        "api/docs",
        SpectacularSwaggerView.as_view(url_name="schema", template_name="docs.html", throttle_classes=()),
        name="docs",
    ),
    path("admin/", admin.site.urls),
    path("", include("exports.urls")),
    path("", include("etl.urls")),
    path("", include("rules.urls")),
    path("app/<path:rest>", home.not_found),  # last: the 404 page for all other paths
]
