"""Schedules and their runs, and the columns of jobs that reference them."""

import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.conf import settings
from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    dependencies = [
        ('exports', '0015_columns'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Schedule',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=100)),
                ('cron', models.CharField(max_length=100)),
                ('timezone', models.CharField(max_length=64)),
                ('request', models.JSONField()),
                ('window_from', models.SmallIntegerField(help_text='First day, relative to the local date of the planned time.')),
                ('window_to', models.SmallIntegerField(help_text='Last day, relative to the local date of the planned time.')),
                ('misfire', models.CharField(choices=[('skip', 'Skip'), ('catch_up', 'Catch Up')], max_length=8)),
                ('enabled', models.BooleanField(default=True)),
                ('disabled_reason', models.CharField(blank=True, default='', max_length=300)),
                ('next_run_at', models.DateTimeField(blank=True, help_text='The next planned time.', null=True)),
                ('check_at', models.DateTimeField(blank=True, help_text='When the scheduler looks at it next.', null=True)),
                ('network', models.CharField(blank=True, default='', help_text='Network that first links are bound to.', max_length=49)),
                ('agent', models.CharField(blank=True, default='', help_text='Digest of the User-Agent that first links are bound to.', max_length=16)),
                ('idempotency_key', models.CharField(blank=True, default='', max_length=255)),
                ('fingerprint', models.CharField(blank=True, default='', help_text='SHA-256 of the request body.', max_length=64)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('updated_at', models.DateTimeField(auto_now=True)),
            ],
            options={
                'db_table': 'exports_schedule',
            },
        ),
        migrations.CreateModel(
            name='ScheduleRun',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('planned_at', models.DateTimeField(blank=True, help_text='Empty: started by hand.', null=True)),
                ('outcome', models.CharField(choices=[('started', 'Started'), ('skipped', 'Skipped'), ('refused', 'Refused'), ('invalid', 'Invalid')], max_length=8)),
                ('detail', models.CharField(blank=True, default='', max_length=300)),
                ('job_id', models.UUIDField(blank=True, null=True)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'exports_schedule_run',
            },
        ),
        migrations.AddField(
            model_name='job',
            name='planned_at',
            field=models.DateTimeField(blank=True, help_text='Planned time of the schedule.', null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='schedule_id',
            field=models.UUIDField(blank=True, help_text='Schedule that created the job.', null=True),
        ),
        migrations.AddField(
            model_name='schedule',
            name='user',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='export_schedules', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='schedulerun',
            name='schedule',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='runs', to='exports.schedule'),
        ),
        migrations.AddIndex(
            model_name='schedule',
            index=models.Index(fields=['user', '-created_at', '-id'], name='exports_schedule_of_user'),
        ),
        migrations.AddIndex(
            model_name='schedule',
            index=models.Index(condition=models.Q(('check_at__isnull', False)), fields=['check_at'], name='exports_schedule_due'),
        ),
        migrations.AddConstraint(
            model_name='schedule',
            constraint=models.UniqueConstraint(condition=models.Q(('idempotency_key', ''), _negated=True), fields=('user', 'idempotency_key'), name='exports_schedule_idempotency'),
        ),
        migrations.AddConstraint(
            model_name='schedule',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('check_at__gte', models.F('next_run_at')), ('enabled', True), ('next_run_at__isnull', False)), models.Q(('check_at__isnull', True), ('enabled', False), ('next_run_at__isnull', True)), _connector='OR'), name='exports_schedule_enabled_is_planned'),
        ),
        migrations.AddIndex(
            model_name='schedulerun',
            index=models.Index(fields=['schedule', '-id'], name='exports_schedule_run_newest'),
        ),
        migrations.AddConstraint(
            model_name='schedulerun',
            constraint=models.UniqueConstraint(fields=('schedule', 'planned_at'), name='exports_schedule_run_once'),
        ),
    ]
