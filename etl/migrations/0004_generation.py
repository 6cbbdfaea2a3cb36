from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    """Rename `fence` to `generation` in the code only. Old and new releases can run side by side."""

    dependencies = [
        ('etl', '0003_task_verbose_name'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RenameField('task', 'fence', 'generation'),
                migrations.AlterField('task', 'generation', models.BigIntegerField(db_column='fence', default=1)),
            ],
        ),
    ]
