from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.db.models.signals import post_migrate


class ExportsConfig(AppConfig):
    """Exports: many chunks of a dataset, by key and date, into files with one-time links."""

    name = "exports"

    def ready(self) -> None:
        post_migrate.connect(provide_slots, sender=self)
        # Imported here, so that every series exists, with 0, from the first scrape on.
        from config.platform.observability.gauges import GaugeQuery, register
        from exports.core import gauges, metrics  # noqa: F401

        register(GaugeQuery(gauges.GAUGES, lambda: {"slots": settings.SLUICE.export_db_slots}, gauges.collect))


def provide_slots(**_signal: Any) -> None:
    """Create the slots after a migration: without them nothing would run before the reaper's first tick."""
    from exports.models import Slot

    Slot.objects.provide(count=settings.SLUICE.export_db_slots)
