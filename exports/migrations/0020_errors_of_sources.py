from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [
        ('exports', '0019_grants'),
    ]

    operations = [
        migrations.AddField(
            model_name='chunk',
            name='source_message',
            field=models.TextField(blank=True, db_default='', default='', help_text='Message of the source for the latest error. It may quote data.'),
        ),
        migrations.AddField(
            model_name='dataset',
            name='show_errors',
            field=models.BooleanField(db_default=False, default=False, help_text="Show owners of exports the source's message of a failed chunk. It may quote data."),
        ),
    ]
