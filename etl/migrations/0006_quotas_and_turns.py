"""Quotas of documents, and the order of turns.

Adds columns and tables, which earlier releases do not use, so that they can still run during the upgrade. They process
tasks in the order of messages, and the rank of their rows is 0. The indexes are in the next migration.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [
        ('etl', '0005_exact_results'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField('task', 'rank', models.BigIntegerField(db_default=0, default=0)),
        migrations.CreateModel(
            name='Allowance',
            fields=[
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to=settings.AUTH_USER_MODEL)),
                ('daily_documents', models.PositiveIntegerField(blank=True, help_text='Empty: ETL_DAILY_DOCUMENTS.', null=True)),
                ('daily_bytes', models.BigIntegerField(blank=True, help_text='Empty: ETL_DAILY_BYTES.', null=True)),
                ('max_open', models.PositiveIntegerField(blank=True, help_text='Empty: ETL_MAX_OPEN_PER_USER.', null=True)),
            ],
            options={
                'db_table': 'etl_allowance',
                'constraints': [models.CheckConstraint(condition=models.Q(('daily_bytes__isnull', True), ('daily_bytes__gte', 0), _connector='OR'), name='etl_allowance_bytes')],
            },
        ),
        migrations.CreateModel(
            name='Upload',
            fields=[
                ('file_key', models.CharField(max_length=200, primary_key=True, serialize=False)),
                ('size', models.BigIntegerField(help_text='Bytes')),
                ('expires_at', models.DateTimeField()),
                ('user', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'db_table': 'etl_upload',
                'indexes': [models.Index(fields=['user', 'expires_at'], name='etl_upload_of_user')],
            },
        ),
        migrations.CreateModel(
            name='Usage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField(help_text="In UTC, by the database's clock")),
                ('documents', models.PositiveIntegerField(default=0)),
                ('bytes', models.BigIntegerField(default=0)),
                ('user', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'db_table': 'etl_usage',
                'verbose_name_plural': 'usage',
                'constraints': [models.UniqueConstraint(fields=('user', 'day'), name='etl_usage_day')],
            },
        ),
    ]
