"""The shared platform as a Django app: registers system checks, OpenAPI extensions and metrics at start."""

from django.apps import AppConfig


class PlatformConfig(AppConfig):
    name = "config.platform"

    def ready(self) -> None:
        from config.platform import checks  # noqa: F401  Django registers checks on import
        from config.platform.http import metrics
        from config.platform.http.openapi import responses  # noqa: F401  drf-spectacular registers extensions on import
        from config.platform.observability import gauges

        metrics.register(gauges.Gauges())
