import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    """Tokens that exist get no row: no name, and all scopes."""

    initial = True

    dependencies = [("knox", "0009_extend_authtoken_field")]

    operations = [
        migrations.CreateModel(
            name="TokenDetails",
            fields=[
                (
                    "token",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="details",
                        serialize=False,
                        to="knox.AuthToken",
                    ),
                ),
                ("name", models.CharField(blank=True, max_length=100)),
                (
                    "scopes",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=32), default=list, help_text="Empty: all", size=None
                    ),
                ),
                ("last_used_at", models.DateTimeField(null=True)),
            ],
            options={"db_table": "platform_token"},
        )
    ]
