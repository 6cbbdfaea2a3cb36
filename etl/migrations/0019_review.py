import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import config.platform.db.clock
import etl.models.exact_fields
from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [migrations.swappable_dependency(settings.AUTH_USER_MODEL), ("etl", "0018_index_of_batches")]

    operations = [
        migrations.AddField(
            "task",
            "reviewed_run",
            models.PositiveIntegerField(blank=True, help_text="The run whose result was reviewed", null=True),
        ),
        migrations.AddField(
            "task",
            "corrections",
            models.PositiveIntegerField(db_default=0, default=0, help_text="How often it was corrected"),
        ),
        migrations.AddField(
            "task",
            "corrected_result",
            etl.models.exact_fields.ExactJSON(
                blank=True, help_text="`data` and `citations` after the last correction", null=True
            ),
        ),
        migrations.AddField("task", "approved_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField(
            "task",
            "approved_by",
            models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.CreateModel(
            "ReviewEvent",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("run", models.PositiveIntegerField(help_text="Of the result")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("corrected", "Corrected"),
                            ("approved", "Approved"),
                            ("approval_removed", "Approval Removed"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "correction",
                    models.PositiveIntegerField(help_text="The number of the correction, or of the last one"),
                ),
                (
                    "pointer",
                    models.TextField(
                        blank=True, default="", help_text="JSON Pointer into data; of a removed value, before"
                    ),
                ),
                (
                    "change",
                    etl.models.exact_fields.ExactJSON(
                        blank=True, help_text='`{"before", "after"}`, without those that do not exist', null=True
                    ),
                ),
                ("created_at", models.DateTimeField(default=config.platform.db.clock.now, editable=False)),
                (
                    "task",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="review_events",
                        to="etl.task",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "db_table": "etl_review_event",
                "ordering": ["-id"],
                "indexes": [models.Index(fields=["task", "-id"], name="etl_review_event_of_task")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("change__isnull", False), ("kind", "corrected")),
                            models.Q(models.Q(("kind", "corrected"), _negated=True), ("change__isnull", True)),
                            _connector="OR",
                        ),
                        name="etl_review_event_has_change",
                    )
                ],
            },
        ),
    ]
