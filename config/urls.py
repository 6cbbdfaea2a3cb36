"""URL configuration. Paths of the public API have no trailing slash."""

from django.contrib import admin
from django.urls import include, path

from config.platform.admin import workers
from config.platform.http import health, metrics, token_views
from config.platform.http.openapi.document import SchemaView
from config.platform.ui import home
from config.platform.ui.reference import ApiReference

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
    path("tokens", token_views.TokenListView.as_view()),
    path("tokens/<uuid:token_id>", token_views.TokenView.as_view()),
    path("api/schema", SchemaView.as_view(), name="schema"),
    path("api/docs", ApiReference.as_view(), name="docs"),
    path("admin/workers", admin.site.admin_view(workers.show), name="workers"),
    path("admin/", admin.site.urls),
    path("", include("exports.urls")),
    path("", include("etl.urls")),
    path("", include("rules.urls")),
    path("app/<path:rest>", home.not_found),  # last: the 404 page for all other paths
]
