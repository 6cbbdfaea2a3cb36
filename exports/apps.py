from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.db.models.signals import post_migrate


class ExportsConfig(AppConfig):
    """Exports: many (key, date) slices of a dataset into files, and one-time links to them."""

    name = "exports"

    def ready(self) -> None:
        post_migrate.connect(provide_slots, sender=self)
        # Here, and not where they are used: every series is there, with 0, from the first scrape on.
        from config.platform.observability.gauges import Part, contribute
        from exports.core import gauges, metrics  # noqa: F401

        contribute(Part(gauges.GAUGES, lambda: {"slots": settings.SLUICE.export_db_slots}, gauges.tell))


def provide_slots(**_signal: Any) -> None:
    """Have slots from the first moment: without any, nothing would run before the reaper's first tick."""
    from exports.models import Slot

    Slot.objects.provide(count=settings.SLUICE.export_db_slots)
