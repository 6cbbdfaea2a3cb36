"""Columns that several admin pages of exports share."""

from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from config.platform.admin.display import badge, number, page_of, short, shown, size

STATUS = shown("status", badge)
ROWS = shown("rows", number)
BYTES = shown("bytes", size, "size")


@admin.display(description="export", empty_value="-")
def of_job(row: Any) -> SafeString | None:
    return page_of("job", row.job_id, short(row.job_id)) if row.job_id else None
