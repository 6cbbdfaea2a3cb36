import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

from config.platform.db import repeatable

# The owner of the table may delete entries in a transaction with this setting: `manage.py trim_audit`.
APPEND_ONLY = """
CREATE OR REPLACE FUNCTION platform_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'UPDATE' AND current_setting('sluice.trim_audit', true) = 'on'
       AND (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = TG_RELID) = current_user THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only: % refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER platform_audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON platform_audit
    FOR EACH STATEMENT EXECUTE FUNCTION platform_audit_is_append_only();
"""
# Privileges by default would let the role of the processes, if it is not the owner, change entries.
REVOKE = """
DO $$
DECLARE other name;
BEGIN
    FOR other IN
        SELECT DISTINCT a.grantee::regrole::name FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'platform_audit'::regclass AND a.grantee NOT IN (0, c.relowner)
    LOOP
        EXECUTE format('REVOKE UPDATE, DELETE, TRUNCATE, TRIGGER ON platform_audit FROM %I', other);
    END LOOP;
    REVOKE UPDATE, DELETE, TRUNCATE, TRIGGER ON platform_audit FROM PUBLIC;
END $$;
"""
UNDO = "DROP FUNCTION IF EXISTS platform_audit_is_append_only CASCADE"
COULD_OPEN_DATA = (("etl", "view_task"), ("etl", "view_documentbatch"), ("exports", "view_chunk"), ("exports", "view_delivery"))


def keep_access(apps, schema_editor):
    """Give the new permission to all who could open data of other users before it existed."""
    alias = schema_editor.connection.alias
    content_type, _ = apps.get_model("contenttypes", "ContentType").objects.using(alias).get_or_create(
        app_label="platform", model="auditentry"
    )
    permissions = apps.get_model("auth", "Permission").objects.using(alias)
    permission, _ = permissions.get_or_create(
        content_type=content_type,
        codename="open_data",
        defaults={"name": "Can open data of all users; each access is in the audit log"},
    )
    could = models.Q()
    for app, codename in COULD_OPEN_DATA:
        could |= models.Q(content_type__app_label=app, codename=codename)
    for earlier in permissions.filter(could):
        permission.user_set.add(*earlier.user_set.all())
        permission.group_set.add(*earlier.group_set.all())


class Migration(repeatable.Migration):
    dependencies = [
        ("platform", "0001_tokens"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "via",
                    models.CharField(
                        choices=[
                            ("api", "API"),
                            ("page", "page"),
                            ("admin", "admin"),
                            ("sign_in", "sign-in"),
                            ("command", "command"),
                        ],
                        max_length=8,
                    ),
                ),
                (
                    "account",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Account of the operating system that ran the command.",
                        max_length=64,
                    ),
                ),
                ("token", models.UUIDField(blank=True, help_text="ID of the API token.", null=True)),
                ("method", models.CharField(blank=True, default="", max_length=8)),
                ("action", models.CharField(help_text="Route of the request, or name of the command.", max_length=200)),
                (
                    "object_ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=300),
                        default=list,
                        help_text="Objects, such as job_id=… and task_id=….",
                        size=None,
                    ),
                ),
                (
                    "status",
                    models.SmallIntegerField(
                        blank=True, help_text="HTTP status. Empty: written with the change.", null=True
                    ),
                ),
                (
                    "outcome",
                    models.CharField(
                        choices=[("success", "success"), ("refused", "refused"), ("failed", "failed")], max_length=8
                    ),
                ),
                ("request_id", models.CharField(blank=True, default="", max_length=64)),
                (
                    "address",
                    models.GenericIPAddressField(blank=True, help_text="Address of the client.", null=True),
                ),
                (
                    "user",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "audit entries",
                "db_table": "platform_audit",
                "default_permissions": ("view",),
                "permissions": [("open_data", "Can open data of all users; each access is in the audit log")],
                "indexes": [
                    models.Index(fields=["at"], name="platform_audit_at"),
                    models.Index(fields=["user", "-id"], name="platform_audit_of_user"),
                    models.Index(fields=["request_id"], name="platform_audit_of_request"),
                    django.contrib.postgres.indexes.GinIndex(fields=["object_ids"], name="platform_audit_of_object"),
                ],
            },
        ),
        migrations.RunSQL(APPEND_ONLY, UNDO),
        migrations.RunSQL(REVOKE, migrations.RunSQL.noop),
        migrations.RunPython(keep_access, migrations.RunPython.noop, elidable=True),
    ]
