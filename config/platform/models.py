"""What Sluice knows of a bearer token besides Knox's row: its name, scopes, and last use."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from knox.models import AuthToken


class TokenDetails(models.Model):
    """Tokens that were created by a release without this table have no row: no name, and no limit of scopes."""

    token = models.OneToOneField(AuthToken, models.CASCADE, primary_key=True, related_name="details")
    name = models.CharField(max_length=100, blank=True)
    scopes = ArrayField(models.CharField(max_length=32), default=list, help_text="Empty: all")
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "platform_token"

    def __str__(self) -> str:
        return self.name
