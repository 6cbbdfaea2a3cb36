import django.db.models.deletion
import exports.models.grant
from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("exports", "0018_resumed"),
    ]

    operations = [
        migrations.AlterField(
            model_name="dataset",
            name="key_pattern",
            field=models.CharField(
                default="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
                max_length=255,
                validators=[exports.models.grant.check_key_pattern],
            ),
        ),
        migrations.CreateModel(
            name="Grant",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "key_pattern",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="A regular expression that the whole key must match, besides the dataset's. Empty: all keys.",
                        max_length=255,
                        validators=[exports.models.grant.check_key_pattern],
                    ),
                ),
                (
                    "dataset",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="grants",
                        to="exports.dataset",
                    ),
                ),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="dataset_grants", to="auth.group"
                    ),
                ),
            ],
            options={
                "db_table": "exports_grant",
                "constraints": [models.UniqueConstraint(fields=("dataset", "group"), name="exports_grant_once")],
            },
        ),
    ]
