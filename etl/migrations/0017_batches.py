"""Batches of documents.

Earlier releases can still run during the upgrade. Their workers end documents without the batch, which recovery then
ends. The index of the new column is in the next migration.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import config.platform.db.clock
from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [
        ("etl", "0016_search_and_duplicates"),
        ("rules", "0003_require_complete"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            "DocumentBatch",
            [
                ("batch_id", models.BigAutoField(primary_key=True, serialize=False)),
                ("rule_version", models.PositiveIntegerField(help_text="The rule's at the time of the request")),
                ("name", models.CharField(blank=True, max_length=200)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("completed", "Completed"),
                            ("completed_with_errors", "Completed With Errors"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="running",
                        max_length=24,
                    ),
                ),
                ("total", models.PositiveIntegerField(help_text="Accepted documents, also those that were deleted")),
                (
                    "refused",
                    models.JSONField(
                        blank=True, default=list, help_text="Files of the request that were not accepted"
                    ),
                ),
                ("cancelled_at", models.DateTimeField(blank=True, null=True)),
                (
                    "completions",
                    models.PositiveIntegerField(default=0, help_text="How often all documents have ended"),
                ),
                ("request_id", models.CharField(blank=True, default="", max_length=64)),
                ("idempotency_key", models.CharField(blank=True, default="", max_length=255)),
                (
                    "fingerprint",
                    models.CharField(
                        blank=True, default="", help_text="SHA-256 of what was submitted", max_length=64
                    ),
                ),
                ("created_at", models.DateTimeField(default=config.platform.db.clock.now, editable=False)),
                ("updated_at", models.DateTimeField(default=config.platform.db.clock.now, editable=False)),
                (
                    "rule",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="rules.rule",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name": "batch",
                "verbose_name_plural": "batches",
                "db_table": "etl_batch",
                "indexes": [
                    models.Index(fields=["user", "-created_at", "-batch_id"], name="etl_batch_of_user"),
                    models.Index(fields=["-created_at", "-batch_id"], name="etl_batch_newest"),
                    models.Index(
                        condition=models.Q(("status", "running")), fields=["batch_id"], name="etl_batch_running"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("idempotency_key", ""), _negated=True),
                        fields=("user", "idempotency_key"),
                        name="etl_batch_idempotency",
                    ),
                ],
            },
        ),
        migrations.AddField(
            "task",
            "batch",
            models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="tasks",
                to="etl.documentbatch",
            ),
        ),
    ]
