"""The operator's commands and checks as a Django app."""

from django.apps import AppConfig


class OpsConfig(AppConfig):
    name = "config.ops"

    def ready(self) -> None:
        from config.ops import checks  # noqa: F401  Django registers checks on import
