"""Quota of rule versions. Expands only: earlier releases charge nothing."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [
        ('rules', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='RuleUsage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField(help_text="In UTC, by the database's clock")),
                ('versions', models.PositiveIntegerField(default=0)),
                ('user', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name_plural': 'usage',
                'db_table': 'etl_rule_usage',
                'abstract': False,
                'indexes': [models.Index(fields=['-day', 'user'], name='rules_usage_newest')],
                'constraints': [models.UniqueConstraint(fields=('user', 'day'), name='rules_usage_day')],
            },
        ),
    ]
