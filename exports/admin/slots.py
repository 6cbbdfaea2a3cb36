"""Admin of source slots and of the latest runs of periodic tasks."""

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import F, OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from config.platform.admin.confirmed_actions import StaffActionAdmin
from config.platform.admin.display import badge, date_or_age, exact_time, page_of
from config.platform.admin.lists import ReadOnly
from config.platform.db import clock
from exports.admin import staff_actions
from exports.admin.columns import of_job
from exports.admin.filters import BySlotState
from exports.core.states import ChunkStatus
from exports.models import Chunk, Slot, Tick


@admin.register(Slot)
class SlotAdmin(StaffActionAdmin):
    row_actions = staff_actions.SLOTS
    list_display = ("__str__", "state", "of_chunk", of_job, date_or_age("lease_until"), "backend")
    list_filter = (BySlotState, "dataset")
    list_select_related = ("dataset",)
    ordering = (F("dataset_id").asc(nulls_first=True), "number")
    fieldsets = (
        (None, {"fields": (("dataset", "number"), "state")}),
        ("Held by", {"fields": (("of_chunk", of_job), ("token", exact_time("lease_until")), "backend")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Add the running chunk. `Slot.chunk_id` is the first chunk of a claim, which may have ended."""
        held_by = Chunk.objects.filter(job_id=OuterRef("job_id"), token=OuterRef("token"), status=ChunkStatus.RUNNING)
        running = Subquery(held_by.order_by("id").values("pk")[:1])
        return super().get_queryset(request).annotate(running_chunk_id=running)  # type: ignore[no-any-return]

    @admin.display(description="status")
    def state(self, slot: Slot) -> str:
        if slot.lease_until is None:
            return badge("free" if is_in_use(slot) else "not in use")
        return badge("held" if slot.lease_until > clock.now() else "expired")

    @admin.display(description="chunk")
    def of_chunk(self, slot: Any) -> SafeString | None:
        chunk_id = slot.running_chunk_id
        return page_of("chunk", chunk_id, chunk_id) if chunk_id else None


def is_in_use(slot: Slot) -> bool:
    """Return whether claims use the slot. Surplus rows remain when EXPORT_DB_SLOTS or a dataset's limit is lowered."""
    limit = slot.dataset.max_concurrency if slot.dataset else settings.SLUICE.export_db_slots
    return limit is not None and slot.number <= limit


@admin.register(Tick)
class TickAdmin(ReadOnly):
    list_display = ("name", date_or_age("ran_at"))
    ordering = ("name",)
