from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [
        ('exports', '0020_errors_of_sources'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='rank',
            field=models.BigIntegerField(db_default=0, default=0, help_text='Rank of its first chunk in the queue.'),
        ),
    ]
