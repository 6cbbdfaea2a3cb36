from typing import Self

from django.conf import settings
from django.db import models
from django.db.models import Q

from config.platform.db.text_size import text_size
from rules.models.ordered import OrderedJSON

# The default mode. ETL_POSTPROCESSORS defines all modes, so the database does not constrain the values.
LLM = "llm"
# Modes that require a schema.
WITH_SCHEMA = (LLM, "einvoice")


class RuleFields(models.Model):
    """The fields that rules and their versions share."""

    name = models.CharField(max_length=200)
    description = models.TextField(default="", blank=True)
    json_schema = OrderedJSON(null=True, blank=True)
    system_prompt = models.TextField(default="", blank=True)
    postprocess_mode = models.CharField(max_length=32, default=LLM)
    postprocess_strategy = models.CharField(max_length=32, default="", blank=True, help_text="Empty: by size")
    require_complete = models.BooleanField(
        default=False, db_default=False, help_text="Fail instead of a result that lacks pages or items"
    )

    class Meta:
        abstract = True


class RuleQuerySet(models.QuerySet["Rule"]):
    def listed(self) -> Self:
        return self.filter(deleted_at=None)

    def with_text_bytes(self) -> Self:
        """Annotate `text_bytes`, the number of characters of the schema's JSON. The prompt is too small to matter."""
        return self.annotate(text_bytes=text_size("json_schema"))


class Rule(RuleFields):
    """A rule for turning Markdown into JSON, with its current content. `RuleVersion` stores every version of it."""

    rule_id = models.BigAutoField(primary_key=True)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="etl_rules", db_index=False
    )
    slug = models.CharField(
        max_length=64, null=True, blank=True, unique=True, help_text="Of a system rule: the name of its file"
    )
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects = RuleQuerySet.as_manager()

    class Meta:
        db_table = "etl_rule"
        indexes = [
            models.Index(fields=["owner", "-created_at", "-rule_id"], name="etl_rule_of_owner"),
            models.Index(fields=["-created_at", "-rule_id"], name="etl_rule_newest"),
        ]
        constraints = [
            models.CheckConstraint(
                name="etl_rule_system_has_slug",
                condition=Q(owner=None, slug__isnull=False) | Q(owner__isnull=False, slug=None),
            ),
            models.CheckConstraint(
                name="etl_rule_llm_has_schema",
                condition=~Q(postprocess_mode=LLM) | Q(json_schema__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_system(self) -> bool:
        return self.owner_id is None


class RuleVersion(RuleFields):
    """A version of a rule. It never changes, because tasks refer to it."""

    rule = models.ForeignKey(Rule, models.CASCADE, related_name="versions", db_index=False)
    version = models.PositiveIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "etl_rule_version"
        constraints = [models.UniqueConstraint(fields=["rule", "version"], name="etl_rule_version_once")]

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"
