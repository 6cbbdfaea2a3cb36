"""Schedules for tests, created in the same way as by the API."""

from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import User

from exports.api.serializers import ExportRequestSerializer
from exports.jobs import submission
from exports.models import Dataset, Schedule
from exports.schedules import editing

START = datetime(2027, 1, 1, tzinfo=UTC)
read_export = ExportRequestSerializer.read


def make_schedule(user: User, dataset: Dataset, *, now: datetime = START, **changes: Any) -> Schedule:
    values = {
        "name": "Yesterday", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "misfire": "skip", "enabled": True,
        "request": {"dataset": dataset.name, "keys": ["JFK"]}, "window_from": -1, "window_to": -1, **changes,
    }  # fmt: skip
    schedule, _ = editing.create(lambda: values, read_export, submission.Caller(user_id=user.pk), now=now)
    return schedule
