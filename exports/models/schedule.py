"""Models of recurring exports: schedules and their runs."""

import uuid
from datetime import datetime, timedelta

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

LATE = timedelta(minutes=10)  # after this delay, a run is skipped, unless the schedule catches up
MAX_REASON = 300  # characters


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def due(self, now: datetime) -> "ScheduleQuerySet":
        """Return the schedules whose check is due, the most overdue first."""
        return self.filter(check_at__lte=now).order_by("check_at")


class Misfire(models.TextChoices):
    """The policy for missed runs."""

    SKIP = "skip"
    CATCH_UP = "catch_up"


class Schedule(models.Model):
    """An export that recurs at the times of a cron expression.

    `request` is the body of `POST /exports`, with `keys` in place of items or filters. Each run validates it again, so
    that changes of the dataset and of limits apply.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="export_schedules", db_index=False)
    name = models.CharField(max_length=100)
    cron = models.CharField(max_length=100)
    timezone = models.CharField(max_length=64)
    request = models.JSONField()
    window_from = models.SmallIntegerField(help_text="First day, relative to the local date of the planned time.")
    window_to = models.SmallIntegerField(help_text="Last day, relative to the local date of the planned time.")
    since_last_success = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Runs begin with the day after the last exported one, if that is earlier.",
    )
    misfire = models.CharField(max_length=8, choices=Misfire)
    enabled = models.BooleanField(default=True)
    disabled_reason = models.CharField(max_length=MAX_REASON, default="", blank=True)
    next_run_at = models.DateTimeField(null=True, blank=True, help_text="The next planned time.")
    # Later than `next_run_at` while the planned run waits for an earlier run to end.
    check_at = models.DateTimeField(null=True, blank=True, help_text="When the scheduler looks at it next.")
    network = models.CharField(
        max_length=49, default="", blank=True, help_text="Network that first links are bound to."
    )
    agent = models.CharField(
        max_length=16, default="", blank=True, help_text="Digest of the User-Agent that first links are bound to."
    )
    idempotency_key = models.CharField(max_length=255, default="", blank=True)
    fingerprint = models.CharField(max_length=64, default="", blank=True, help_text="SHA-256 of the request body.")
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(auto_now=True)

    objects = ScheduleQuerySet.as_manager()

    last_run: "ScheduleRun | None"  # set by `representation.with_last_runs`

    class Meta:
        db_table = "exports_schedule"
        indexes = [
            models.Index(fields=["user", "-created_at", "-id"], name="exports_schedule_of_user"),
            models.Index(fields=["check_at"], name="exports_schedule_due", condition=Q(check_at__isnull=False)),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "idempotency_key"],
                name="exports_schedule_idempotency",
                condition=~Q(idempotency_key=""),
            ),
            models.CheckConstraint(
                name="exports_schedule_enabled_is_planned",
                condition=Q(enabled=True, next_run_at__isnull=False, check_at__gte=F("next_run_at"))
                | Q(enabled=False, next_run_at__isnull=True, check_at__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def plan(self, at: datetime) -> None:
        """Set the next planned time. Does not save."""
        self.enabled, self.disabled_reason, self.next_run_at, self.check_at = True, "", at, at

    def disable(self, reason: str) -> None:
        """Disable the schedule. Does not save."""
        self.enabled, self.next_run_at, self.check_at = False, None, None
        self.disabled_reason = reason[:MAX_REASON]


class ScheduleRun(models.Model):
    """The outcome of a planned or manual run. Written in the transaction that sets the schedule's next planned time."""

    class Outcome(models.TextChoices):
        STARTED = "started"  # further progress is in the job's status
        SKIPPED = "skipped"
        REFUSED = "refused"  # the user's quota was used up
        INVALID = "invalid"  # the request is no longer valid, and the schedule was disabled

    id = models.BigAutoField(primary_key=True)
    schedule = models.ForeignKey(Schedule, models.CASCADE, related_name="runs", db_index=False)
    planned_at = models.DateTimeField(null=True, blank=True, help_text="Empty: started by hand.")
    outcome = models.CharField(max_length=8, choices=Outcome)
    detail = models.CharField(max_length=MAX_REASON, default="", blank=True)
    # Not a foreign key: runs outlive their jobs, which are deleted after EXPORT_JOB_RETENTION_DAYS.
    job_id = models.UUIDField(null=True, blank=True)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "exports_schedule_run"
        indexes = [models.Index(fields=["schedule", "-id"], name="exports_schedule_run_newest")]
        constraints = [
            models.UniqueConstraint(fields=["schedule", "planned_at"], name="exports_schedule_run_once"),
        ]

    def __str__(self) -> str:
        return f"{self.outcome} {self.planned_at or self.at:%Y-%m-%d %H:%M}"
