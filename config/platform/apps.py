"""Django app of the shared platform. It registers system checks and signal receivers at startup."""

from typing import Any

from django.apps import AppConfig
from django.apps import apps as global_apps
from django.apps.registry import Apps
from django.db.models.signals import post_migrate, post_save


class PlatformConfig(AppConfig):
    name = "config.platform"

    def ready(self) -> None:
        from config.platform import checks  # noqa: F401  Django registers checks on import
        from config.platform.ui import sign_in_records  # noqa: F401  connects its signals on import

        post_migrate.connect(provide_roles)
        post_save.connect(record_logged_change, sender="admin.LogEntry")


def provide_roles(*, app_config: AppConfig, apps: Apps = global_apps, **_signal: Any) -> None:
    """Create the groups of the roles after the last app is migrated, when all permissions exist."""
    if app_config is [*global_apps.get_app_configs()][-1] and "group" in apps.all_models["auth"]:
        from config.platform.http import roles

        roles.create_groups()


def record_logged_change(**_signal: Any) -> None:
    """Write an audit entry with the admin's log entry, in the transaction of the change."""
    from config.platform.http import audit

    audit.record_change()
