"""The project's own app: management commands, and what has to be registered at start."""

from django.apps import AppConfig


class SluiceConfig(AppConfig):
    name = "config"

    def ready(self) -> None:
        from config import gauges, metrics
        from config.api import schema  # noqa: F401  drf-spectacular registers extensions on import

        metrics.register(gauges.Gauges())
