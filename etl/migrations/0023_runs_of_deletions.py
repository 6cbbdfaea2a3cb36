from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [("etl", "0022_token_budgets")]

    operations = [
        migrations.AddField("deletion", "first_run", models.BigIntegerField(null=True)),
        migrations.AddField("deletion", "last_run", models.BigIntegerField(null=True)),
    ]
