"""Rules that require complete documents. Expands only: rows of earlier releases get the database's default."""

from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [
        ('rules', '0002_usage'),
    ]

    operations = [
        migrations.AddField(name, 'require_complete', models.BooleanField(db_default=False, default=False, help_text='Fail instead of a result that lacks pages or items'))
        for name in ('rule', 'ruleversion')
    ]
