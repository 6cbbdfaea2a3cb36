from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    dependencies = [("exports", "0026_upload_number")]

    operations = [
        migrations.AddField(
            "chunk",
            "charged_on",
            models.DateField(
                blank=True,
                help_text="Day whose quota was charged. Null for chunks of earlier releases: the job's.",
                null=True,
            ),
        ),
    ]
