"""The project's own app: management commands, and what has to be registered at start."""

from django.apps import AppConfig


class SluiceConfig(AppConfig):
    name = "config"

    def ready(self) -> None:
        from config import checks, gauges, metrics  # noqa: F401  Django registers checks on import
        from config.api import schema  # noqa: F401  drf-spectacular registers extensions on import

        metrics.register(gauges.Gauges())
