"""Usage of daily quotas, open upload URLs, and limits for individual users and rules."""

from django.conf import settings
from django.db import models

from config.platform.db.usage import DailyUsage, DailyUsageQuerySet
from rules.models import Rule


class Usage(DailyUsage):
    """A user's usage in a day. Written by `etl.pipeline.quotas` and, for tokens, by `etl.pipeline.budgets`."""

    documents = models.PositiveIntegerField(default=0)
    bytes = models.BigIntegerField(default=0)
    tokens = models.BigIntegerField(default=0, db_default=0, help_text="Of language models")
    tests = models.PositiveIntegerField(default=0, db_default=0, help_text="Of rules, with a language model")

    class Meta(DailyUsage.Meta):
        db_table = "etl_usage"


class Upload(models.Model):
    """A presigned upload. It counts like a submission until its document is submitted or deleted."""

    file_key = models.CharField(max_length=200, primary_key=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_index=False)
    size = models.BigIntegerField(help_text="Bytes")
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "etl_upload"
        indexes = [models.Index(fields=["user", "expires_at"], name="etl_upload_of_user")]

    def __str__(self) -> str:
        return self.file_key


class Allowance(models.Model):
    """The limits of one user, set by staff to override the settings."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="+")
    daily_documents = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: ETL_DAILY_DOCUMENTS.")
    daily_bytes = models.BigIntegerField(null=True, blank=True, help_text="Empty: ETL_DAILY_BYTES.")
    daily_tokens = models.PositiveBigIntegerField(null=True, blank=True, help_text="Empty: ETL_DAILY_TOKENS.")
    max_open = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: ETL_MAX_OPEN_PER_USER.")

    class Meta:
        db_table = "etl_allowance"
        constraints = [
            models.CheckConstraint(
                name="etl_allowance_bytes",
                condition=models.Q(daily_bytes__isnull=True) | models.Q(daily_bytes__gte=0),
            )
        ]

    def __str__(self) -> str:
        return str(self.user)


class RuleAllowance(models.Model):
    """The daily token budget of one rule, set by staff to override the settings."""

    rule = models.OneToOneField(Rule, models.CASCADE, primary_key=True, related_name="+")
    daily_tokens = models.PositiveBigIntegerField(help_text="Of language models, for all users together.")

    class Meta:
        db_table = "etl_rule_allowance"

    def __str__(self) -> str:
        return str(self.rule)


class RuleTokens(models.Model):
    """The language model tokens that a rule has used in a day. Written by `etl.pipeline.budgets`."""

    rule_id = models.BigIntegerField()
    day = models.DateField(help_text="In UTC, by the database's clock")
    tokens = models.BigIntegerField(default=0)

    objects = DailyUsageQuerySet.as_manager()

    class Meta:
        db_table = "etl_rule_tokens"
        verbose_name_plural = "tokens of rules"
        constraints = [models.UniqueConstraint(fields=["day", "rule_id"], name="etl_rule_tokens_day")]

    def __str__(self) -> str:
        return f"{self.rule_id} {self.day}"
