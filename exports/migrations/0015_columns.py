import django.contrib.postgres.fields
from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [
        ('exports', '0014_events_of_documents'),
    ]

    operations = [
        migrations.AddField(
            model_name='dataset',
            name='columns',
            field=models.JSONField(blank=True, editable=False, help_text='Columns of the function, as of the latest registration: name and type. Null if not known yet.', null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='columns',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), blank=True, help_text='Selected columns, in their order. Empty: all columns.', null=True, size=None),
        ),
        migrations.AlterField(
            model_name='job',
            name='compression',
            field=models.CharField(choices=[('none', 'None'), ('gzip', 'Gzip'), ('zstd', 'Zstd')], default='none', max_length=8),
        ),
        migrations.AlterField(
            model_name='job',
            name='format',
            field=models.CharField(choices=[('csv', 'Csv'), ('jsonl', 'Jsonl'), ('json', 'Json'), ('parquet', 'Parquet')], max_length=8),
        ),
    ]
