from typing import Any

from django.apps import AppConfig, apps
from django.apps.registry import Apps
from django.conf import settings
from django.db.models.signals import post_migrate


class ExportsConfig(AppConfig):
    """The Django app of exports: it writes chunks of a dataset to files, and delivers them by one-time links."""

    name = "exports"

    def ready(self) -> None:
        post_migrate.connect(provide_slots, sender=self)
        post_migrate.connect(provide_datasets, sender=self)
        # Imported here so that every series exists, with the value 0, from the first scrape on.
        from config.platform.observability.gauges import GaugeQuery, register
        from exports.core import gauges, metrics  # noqa: F401

        register(GaugeQuery(gauges.GAUGES, lambda: {"slots": settings.SLUICE.export_db_slots}, gauges.collect))


def provide_slots(**_signal: Any) -> None:
    """Create the slots after a migration, because no chunk could run before the first run of the reaper otherwise."""
    from exports.models import Slot

    Slot.objects.provide(count=settings.SLUICE.export_db_slots)


def provide_datasets(*, apps: Apps = apps, **_signal: Any) -> None:
    """Create the built-in datasets, unless the database is migrated to a version before the column `kind`."""
    from exports.models import Dataset

    migrated = apps.all_models["exports"].get("dataset")
    if migrated is not None and any(field.name == "kind" for field in migrated._meta.get_fields()):
        Dataset.objects.provide_built_in()
