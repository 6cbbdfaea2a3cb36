import uuid
from datetime import datetime

from django.db import models
from django.db.models.functions import Now

from exports.core.states import DownloadOutcome


class Link(models.Model):
    """A single-use download URL for a receipt. Its token is a signature of the row's ID, and is not stored."""

    link_id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    receipt = models.ForeignKey("exports.Receipt", models.CASCADE, related_name="links")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    network = models.CharField(
        max_length=49, db_default="", blank=True, help_text="Network of the client that may use it. Empty: any network."
    )
    agent = models.CharField(
        max_length=16,
        db_default="",
        blank=True,
        help_text="Digest of the User-Agent that may use it. Empty: any client.",
    )

    class Meta:
        db_table = "exports_link"
        indexes = [models.Index(fields=["-created_at"], name="exports_link_newest")]
        constraints = [
            # A receipt has at most one link that is neither used nor revoked: a new one revokes the previous one.
            models.UniqueConstraint(
                fields=["receipt"],
                name="exports_link_one_open",
                condition=models.Q(used_at__isnull=True, revoked_at__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return str(self.link_id)

    def state_at(self, now: datetime) -> str:
        """Return `open`, `used`, `revoked` or `expired`."""
        if self.used_at:
            return "used"
        if self.revoked_at:
            return "revoked"
        return "open" if self.expires_at > now else "expired"


class Download(models.Model):
    """A successful or refused use of a link. The admin and the timeline of the export show it."""

    job = models.ForeignKey("exports.Job", models.CASCADE, related_name="downloads")
    link = models.ForeignKey(Link, models.CASCADE, null=True, blank=True, related_name="downloads")
    outcome = models.CharField(max_length=16, choices=DownloadOutcome)
    address = models.GenericIPAddressField(null=True, blank=True)
    user_agent = models.CharField(max_length=200, default="", blank=True)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "exports_download"

    def __str__(self) -> str:
        return f"{self.outcome} {self.at:%Y-%m-%d %H:%M:%S}"
