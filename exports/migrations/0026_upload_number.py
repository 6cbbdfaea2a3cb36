from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    dependencies = [("exports", "0025_packs_of_batches")]

    operations = [
        migrations.AddField(
            "file",
            "upload_number",
            models.BigIntegerField(
                db_default=0, default=0, help_text="Larger than the numbers of all objects that this one replaced."
            ),
        ),
    ]
