"""A UUID that identifies a document outside the database. Existing rows have none and keep their artifact keys."""

from django.db import migrations, models

import etl.models.task
from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [('etl', '0008_document_key_index')]

    operations = [
        migrations.AddField(
            'task',
            'uuid',
            models.CharField(
                blank=True, db_default='', default=etl.models.task.new_uuid, editable=False, max_length=36
            ),
        ),
    ]
