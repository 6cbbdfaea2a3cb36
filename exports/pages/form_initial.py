"""Initial values of the form for an export."""

import csv
import io
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from django.conf import settings

from exports.core.planning import Dialect
from exports.models import Job
from exports.models.dataset import FORMATS
from exports.pages import pasted_pairs
from exports.pages.form import FILTERS, ITEMS
from exports.pages.form_choices import DIALECTS, LIFETIMES


def fresh_initial() -> dict[str, Any]:
    return {"once": uuid4()}


def initial_like(job: Job) -> dict[str, Any]:
    """Return initial values that repeat a job's request."""
    return {
        **fresh_initial(),
        "name": job.name,
        "dataset": job.dataset.name,
        **initial_selection(job),
        "format": job.format if job.format in FORMATS else "csv",
        **initial_dialect(job.shape.dialect),
        "compression": job.compression,
        "columns": columns_text(job.columns or ()),
        "delivery": job.delivery,
        "reuse": job.reuse == "if-present",
        "allow_degraded": job.allow_degraded,
        "keep_for": job.ttl if job.ttl in LIFETIMES and job.ttl != settings.SLUICE.export_delivery_ttl_seconds else "",
    }


def initial_dialect(written: Dialect) -> dict[str, Any]:
    return {
        "written_for": next((name for name, each in DIALECTS.items() if each == written), "own"),
        "delimiter": written.delimiter,
        "bom": written.bom,
        "guard": written.formula_policy == "escape",
    }


def initial_selection(job: Job) -> dict[str, Any]:
    filters = job.filters or {}
    if job.dataset.built_in:
        names = {"rule": "ruleId", "batch": "batchId", "status": "status", "date_from": "dateFrom", "date_to": "dateTo"}
        return {field: filters.get(name, "") for field, name in names.items()}
    if filters:
        return {
            "mode": FILTERS,
            "keys": "\n".join(filters["keys"]),
            "date_from": filters["dateFrom"],
            "date_to": filters["dateTo"],
        }
    pairs = job.chunks.in_request_order().values_list("key", "effective_date")
    return {"mode": ITEMS, "items": pasted_pairs.text_of(pairs)}


def columns_text(names: Iterable[str]) -> str:
    """Return the names as a line of CSV, which `form.column_names` parses."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()
