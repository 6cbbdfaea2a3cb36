import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import config.platform.db.clock
import etl.models.exact_fields
from config.platform.db import repeatable


class Migration(repeatable.Migration):
    dependencies = [
        ("etl", "0020_review_index"),
        ("rules", "0003_require_complete"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Evaluation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("version", models.PositiveIntegerField()),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("completed", "Completed"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="running",
                        max_length=12,
                    ),
                ),
                ("samples", models.PositiveIntegerField(help_text="At the start")),
                (
                    "accuracy",
                    models.FloatField(blank=True, help_text="Share of correct values, from 0 to 1", null=True),
                ),
                ("fields", models.JSONField(blank=True, default=dict, help_text="Accuracy by field")),
                ("error", models.JSONField(blank=True, null=True)),
                ("created_at", models.DateTimeField(default=config.platform.db.clock.now, editable=False)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "rule",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="evaluations",
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
                "db_table": "etl_evaluation",
            },
        ),
        migrations.CreateModel(
            name="Sample",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("expected", etl.models.exact_fields.ExactJSON()),
                ("created_at", models.DateTimeField(default=config.platform.db.clock.now, editable=False)),
                (
                    "rule",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="samples",
                        to="rules.rule",
                    ),
                ),
                (
                    "task",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="samples",
                        to="etl.task",
                        verbose_name="document",
                    ),
                ),
            ],
            options={
                "db_table": "etl_sample",
            },
        ),
        migrations.CreateModel(
            name="SampleRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("running", "Running"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                        ],
                        default="waiting",
                        max_length=8,
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("token", models.UUIDField(blank=True, null=True)),
                ("leased_until", models.DateTimeField(blank=True, null=True)),
                ("available_at", models.DateTimeField(default=config.platform.db.clock.now)),
                ("fields", models.JSONField(blank=True, default=dict)),
                ("misses", etl.models.exact_fields.ExactJSON(blank=True, null=True)),
                ("error", models.JSONField(blank=True, null=True)),
                ("duration_ms", models.PositiveIntegerField(default=0)),
                ("calls", models.PositiveIntegerField(default=0)),
                ("prompt_tokens", models.PositiveBigIntegerField(default=0)),
                ("completion_tokens", models.PositiveBigIntegerField(default=0)),
                (
                    "evaluation",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="runs",
                        to="etl.evaluation",
                    ),
                ),
                (
                    "sample",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="runs", to="etl.sample"
                    ),
                ),
            ],
            options={
                "db_table": "etl_sample_run",
            },
        ),
        migrations.AddIndex(
            model_name="evaluation",
            index=models.Index(
                condition=models.Q(("status", "running")), fields=["user", "id"], name="etl_evaluation_running"
            ),
        ),
        migrations.AddConstraint(
            model_name="evaluation",
            constraint=models.UniqueConstraint(fields=("rule", "number"), name="etl_evaluation_once"),
        ),
        migrations.AddConstraint(
            model_name="evaluation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("accuracy__isnull", False), ("status", "completed")),
                    models.Q(models.Q(("status", "completed"), _negated=True), ("accuracy", None)),
                    _connector="OR",
                ),
                name="etl_evaluation_completed_has_accuracy",
            ),
        ),
        migrations.AddConstraint(
            model_name="evaluation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("ended_at", None), ("status", "running")),
                    models.Q(models.Q(("status", "running"), _negated=True), ("ended_at__isnull", False)),
                    _connector="OR",
                ),
                name="etl_evaluation_ended",
            ),
        ),
        migrations.AddIndex(
            model_name="sample",
            index=models.Index(fields=["rule", "-id"], name="etl_sample_of_rule"),
        ),
        migrations.AddConstraint(
            model_name="sample",
            constraint=models.UniqueConstraint(fields=("rule", "task"), name="etl_sample_once"),
        ),
        migrations.AddConstraint(
            model_name="samplerun",
            constraint=models.UniqueConstraint(fields=("evaluation", "sample"), name="etl_sample_run_once"),
        ),
        migrations.AddConstraint(
            model_name="samplerun",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("leased_until__isnull", False), ("status", "running"), ("token__isnull", False)),
                    models.Q(models.Q(("status", "running"), _negated=True), ("leased_until", None), ("token", None)),
                    _connector="OR",
                ),
                name="etl_sample_run_leased",
            ),
        ),
    ]
