import django.db.models.deletion
from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [("etl", "0021_evaluations"), ("rules", "0003_require_complete")]

    operations = [
        migrations.AddField(
            "usage",
            "tokens",
            models.BigIntegerField(db_default=0, default=0, help_text="Of language models"),
        ),
        migrations.AddField(
            "allowance",
            "daily_tokens",
            models.PositiveBigIntegerField(blank=True, null=True, help_text="Empty: ETL_DAILY_TOKENS."),
        ),
        migrations.CreateModel(
            name="RuleAllowance",
            fields=[
                (
                    "rule",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="rules.rule",
                    ),
                ),
                (
                    "daily_tokens",
                    models.PositiveBigIntegerField(help_text="Of language models, for all users together."),
                ),
            ],
            options={
                "db_table": "etl_rule_allowance",
            },
        ),
        migrations.CreateModel(
            name="RuleTokens",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("rule_id", models.BigIntegerField()),
                ("day", models.DateField(help_text="In UTC, by the database's clock")),
                ("tokens", models.BigIntegerField(default=0)),
            ],
            options={
                "verbose_name_plural": "tokens of rules",
                "db_table": "etl_rule_tokens",
                "constraints": [models.UniqueConstraint(fields=("day", "rule_id"), name="etl_rule_tokens_day")],
            },
        ),
    ]
