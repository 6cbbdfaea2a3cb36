"""Indexes of Django's audit log: for the newest entries of a user, and for those of an object.

Each opening of another user's document reads the user's entries of the last hour, the admin's start page shows eight.
"""

from django.db import migrations

from config.platform.db import repeatable

INDEXES = {
    "sluice_admin_log_of_user": "user_id, action_time DESC",
    "sluice_admin_log_of_object": "object_id, content_type_id",
}


class Migration(repeatable.Migration):
    atomic = False  # indexes are created while others write

    dependencies = [
        ("admin", "0003_logentry_add_action_flag_choices"),
        ("exports", "0012_created_at"),
    ]

    operations = [
        migrations.RunSQL(
            [
                f"DROP INDEX CONCURRENTLY IF EXISTS {name}",  # an invalid one of an interrupted run
                f"CREATE INDEX CONCURRENTLY {name} ON django_admin_log ({columns})",
            ],
            migrations.RunSQL.noop,
        )
        for name, columns in INDEXES.items()
    ]
