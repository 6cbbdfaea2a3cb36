"""Indexes of Django's admin log, for the newest entries of a user and for the entries of an object.

When staff open another user's document, Sluice reads their entries of the last hour. The admin's start page shows their
newest eight.
"""

from django.db import migrations

from config.platform.db import repeatable

INDEXES = {
    "sluice_admin_log_of_user": "user_id, action_time DESC",
    "sluice_admin_log_of_object": "object_id, content_type_id",
}


class Migration(repeatable.Migration):
    atomic = False  # indexes are created concurrently

    dependencies = [
        ("admin", "0003_logentry_add_action_flag_choices"),
        ("exports", "0012_created_at"),
    ]

    operations = [
        migrations.RunSQL(
            [
                f"DROP INDEX CONCURRENTLY IF EXISTS {name}",  # left invalid by an interrupted run
                f"CREATE INDEX CONCURRENTLY {name} ON django_admin_log ({columns})",
            ],
            migrations.RunSQL.noop,
        )
        for name, columns in INDEXES.items()
    ]
