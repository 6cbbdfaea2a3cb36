import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('platform', '0002_audit_entries'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Identity',
            fields=[
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='identity', serialize=False, to=settings.AUTH_USER_MODEL)),
                ('issuer', models.CharField(max_length=255)),
                ('subject', models.CharField(max_length=255)),
                ('tokens', models.JSONField(default=dict)),
                ('checked_at', models.DateTimeField(help_text='When the provider last confirmed the user.')),
                ('attempted_at', models.DateTimeField(help_text='When the last check began.')),
                ('failed_at', models.DateTimeField(help_text='When the last check that got no response began.', null=True)),
                ('ended_at', models.DateTimeField(help_text='When it no longer confirmed the user.', null=True)),
            ],
            options={
                'db_table': 'platform_identity',
                'constraints': [models.UniqueConstraint(fields=('issuer', 'subject'), name='platform_identity_of_a_subject')],
            },
        ),
        migrations.CreateModel(
            name='SecondFactor',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('totp', 'Authenticator app'), ('webauthn', 'Security key')], max_length=8)),
                ('name', models.CharField(max_length=100)),
                ('secret', models.BinaryField()),
                ('counter', models.BigIntegerField(default=0, help_text="The last accepted time step, or the key's signature counter.")),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('last_used_at', models.DateTimeField(null=True)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='second_factors', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'db_table': 'platform_second_factor',
            },
        ),
        migrations.CreateModel(
            name='RecoveryCode',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='recovery_codes', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'db_table': 'platform_recovery_code',
                'constraints': [models.UniqueConstraint(fields=('user', 'digest'), name='platform_recovery_code_of_a_user')],
            },
        ),
    ]
