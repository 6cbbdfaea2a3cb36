from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.db import models

from exports.core import key_patterns


def check_key_pattern(pattern: str) -> None:
    if error := key_patterns.error_of(pattern):
        raise ValidationError(error)


class Grant(models.Model):
    """The permission of a group to export a dataset, or those of its keys that match a pattern.

    A dataset without grants is open to all users. A group with grants cannot be deleted, because deleting the last
    grant of a dataset would open it to all users.
    """

    dataset = models.ForeignKey("exports.Dataset", models.CASCADE, related_name="grants", db_index=False)
    group = models.ForeignKey(Group, models.PROTECT, related_name="dataset_grants")
    key_pattern = models.CharField(
        max_length=255,
        default="",
        blank=True,
        validators=[check_key_pattern],
        help_text="A regular expression that the whole key must match, besides the dataset's. Empty: all keys.",
    )

    class Meta:
        db_table = "exports_grant"
        constraints = [models.UniqueConstraint(fields=["dataset", "group"], name="exports_grant_once")]

    def __str__(self) -> str:
        return f"{self.dataset} to {self.group}" + (f", keys {self.key_pattern}" if self.key_pattern else "")
