"""The watermark, which detects a database that is older than its bucket."""

import uuid

from django.db import migrations, models
from django.db.models.functions import Now

from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [('exports', '0009_error_of_an_event')]

    operations = [
        migrations.CreateModel(
            name='Watermark',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ('database', models.UUIDField(default=uuid.uuid4, help_text='In the key of the copy: databases may share a bucket')),
                ('number', models.BigIntegerField(default=0)),
                ('reached_at', models.DateTimeField(db_default=Now())),
                ('bucket_number', models.BigIntegerField(blank=True, null=True)),
                ('bucket_reached_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={'db_table': 'exports_watermark'},
        ),
    ]
