"""Webhooks of documents and batches: the subject of a delivery, and its unique key."""

import django.contrib.postgres.fields
from django.db import migrations, models

from config.platform.db import repeatable

EVENTS = [
    ("export.succeeded", "Succeeded"),
    ("export.failed", "Failed"),
    ("export.cancelled", "Cancelled"),
    ("document.completed", "Document Completed"),
    ("document.failed", "Document Failed"),
    ("batch.completed", "Batch Completed"),
]
ONCE = models.UniqueConstraint(
    fields=["webhook", "subject", "seq"], name="exports_delivery_of_subject", condition=~models.Q(subject="")
)


class Migration(repeatable.Migration):
    atomic = False  # the index is created concurrently

    dependencies = [("exports", "0013_indexes_of_audit_log")]

    operations = [
        repeatable.AddField(
            "delivery",
            "subject",
            models.CharField(blank=True, db_default="", default="", help_text="Such as document:17", max_length=64),
        ),
        migrations.AlterField(
            "delivery",
            "seq",
            models.BigIntegerField(
                blank=True, help_text="Grows with each event of a subject. Null for a test", null=True
            ),
        ),
        migrations.AlterField(
            "webhook",
            "events",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(choices=EVENTS, max_length=32), size=None
            ),
        ),
        migrations.RunSQL(
            [
                "DROP INDEX CONCURRENTLY IF EXISTS exports_delivery_of_subject",  # left invalid by an interrupted run
                "CREATE UNIQUE INDEX CONCURRENTLY exports_delivery_of_subject"
                " ON exports_delivery (webhook_id, subject, seq) WHERE NOT (subject = '')",
            ],
            "DROP INDEX CONCURRENTLY IF EXISTS exports_delivery_of_subject",
            state_operations=[migrations.AddConstraint("delivery", ONCE)],
        ),
    ]
