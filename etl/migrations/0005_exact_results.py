"""Results with all digits of numbers, and a ledger of model calls.

Adds columns and a table, which earlier releases do not use, so that they can still run during the upgrade.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models import Q

from config.platform.db import repeatable

import etl.models.exact_fields


class Migration(repeatable.Migration):

    dependencies = [
        ('etl', '0004_generation'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        # The column stays `jsonb`. Only the conversion in Python changes.
        migrations.AlterField('task', 'result', etl.models.exact_fields.ExactJSONB(blank=True, null=True)),
        migrations.AddField('task', 'last_result', etl.models.exact_fields.ExactJSON(blank=True, help_text='Of the last completed run, digit for digit', null=True)),
        migrations.AddField('task', 'last_result_run', models.PositiveIntegerField(blank=True, help_text='The run that last_result is of', null=True)),
        migrations.CreateModel(
            name='ModelUsage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rule_id', models.BigIntegerField(help_text='0 for a rule that was tested before it was saved')),
                ('task_id', models.BigIntegerField(blank=True, help_text='Empty for the test of a rule', null=True)),
                ('run', models.PositiveIntegerField(default=0)),
                ('calls', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('user', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='model_usage', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name_plural': 'model usage',
                'db_table': 'etl_model_usage',
                'indexes': [models.Index(fields=['user', 'created_at'], name='etl_model_usage_of_user')],
                'constraints': [models.UniqueConstraint(condition=Q(('task_id__isnull', False)), fields=('task_id', 'run'), name='etl_model_usage_of_run')],
            },
        ),
    ]
