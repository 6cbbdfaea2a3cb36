"""The shared platform as a Django app: registers system checks and metrics at start."""

from django.apps import AppConfig


class PlatformConfig(AppConfig):
    name = "config.platform"

    def ready(self) -> None:
        from config.platform import checks  # noqa: F401  Django registers checks on import
        from config.platform.observability import exposition, gauges

        exposition.register(gauges.Gauges())
