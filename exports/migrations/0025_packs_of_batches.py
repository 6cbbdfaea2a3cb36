from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    dependencies = [("exports", "0024_names_of_jobs")]

    operations = [
        migrations.AddField(
            "chunk",
            "pack",
            models.BigIntegerField(
                blank=True,
                help_text="The pack of its batch that has the file's bytes, by the batch's token.",
                null=True,
            ),
        ),
        migrations.AddField(
            "chunk",
            "pack_offset",
            models.IntegerField(blank=True, help_text="Position in that pack, in bytes.", null=True),
        ),
    ]
