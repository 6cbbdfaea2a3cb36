"""Models of tokens and users that extend those of Knox and Django, and the audit log."""

from django.contrib.auth.models import User
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models.functions import Now
from knox.models import AuthToken


class TokenDetails(models.Model):
    """The name, scopes, and last use of an API token.

    Tokens from a release without this table have no row. They have no name, and all scopes.
    """

    token = models.OneToOneField(AuthToken, models.CASCADE, primary_key=True, related_name="details")
    name = models.CharField(max_length=100, blank=True)
    scopes = ArrayField(models.CharField(max_length=32), default=list, help_text="Empty: all")
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "platform_token"

    def __str__(self) -> str:
        return self.name


class AuditEntry(models.Model):
    """A request that opened data or changed something, a sign-in, or a command. See docs/access.md.

    The table is append-only: a trigger rejects other statements. Entries outlive the objects that they name, so there
    is no foreign key.
    """

    class Via(models.TextChoices):
        API = "api", "API"
        PAGE = "page", "page"
        ADMIN = "admin", "admin"
        SIGN_IN = "sign_in", "sign-in"
        COMMAND = "command", "command"

    class Outcome(models.TextChoices):
        SUCCESS = "success", "success"
        REFUSED = "refused", "refused"
        FAILED = "failed", "failed"

    at = models.DateTimeField(db_default=Now())
    via = models.CharField(max_length=8, choices=Via)
    user = models.ForeignKey(User, models.DO_NOTHING, null=True, blank=True, db_constraint=False, db_index=False)
    account = models.CharField(
        max_length=64, default="", blank=True, help_text="Account of the operating system that ran the command."
    )
    token = models.UUIDField(null=True, blank=True, help_text="ID of the API token.")
    method = models.CharField(max_length=8, default="", blank=True)
    action = models.CharField(max_length=200, help_text="Route of the request, or name of the command.")
    object_ids = ArrayField(
        models.CharField(max_length=300), default=list, help_text="Objects, such as job_id=… and task_id=…."
    )
    status = models.SmallIntegerField(null=True, blank=True, help_text="HTTP status. Empty: written with the change.")
    outcome = models.CharField(max_length=8, choices=Outcome)
    request_id = models.CharField(max_length=64, default="", blank=True)
    address = models.GenericIPAddressField(null=True, blank=True, help_text="Address of the client.")

    class Meta:
        db_table = "platform_audit"
        verbose_name_plural = "audit entries"
        default_permissions = ("view",)
        permissions = [("open_data", "Can open data of all users; each access is in the audit log")]
        indexes = [
            models.Index(fields=["at"], name="platform_audit_at"),
            models.Index(fields=["user", "-id"], name="platform_audit_of_user"),
            models.Index(fields=["request_id"], name="platform_audit_of_request"),
            GinIndex(fields=["object_ids"], name="platform_audit_of_object"),
        ]

    def __str__(self) -> str:
        return f"{self.method} {self.action}".strip()


class Identity(models.Model):
    """The user's identity at the OpenID provider. Local users have none.

    `tokens` are the provider's, in plain text because they are sent to it: `access_token`, `refresh_token`,
    `expires_at`. Without the client secret, the refresh token is useless.
    """

    user = models.OneToOneField(User, models.CASCADE, primary_key=True, related_name="identity")
    issuer = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)
    tokens = models.JSONField(default=dict)
    checked_at = models.DateTimeField(help_text="When the provider last confirmed the user.")
    attempted_at = models.DateTimeField(help_text="When the last check began.")
    failed_at = models.DateTimeField(null=True, help_text="When the last check that got no response began.")
    ended_at = models.DateTimeField(null=True, help_text="When it no longer confirmed the user.")

    class Meta:
        db_table = "platform_identity"
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="platform_identity_of_a_subject")]

    def __str__(self) -> str:
        return self.subject

    @property
    def is_being_checked(self) -> bool:
        ended = [self.checked_at, *filter(None, (self.failed_at, self.ended_at))]
        return self.attempted_at > max(ended)


class SecondFactor(models.Model):
    """An authenticator app or a security key of a local user.

    `secret` is in plain text for an authenticator app, because checking a code needs it. For a security key, it is the
    credential with its public key.
    """

    class Kind(models.TextChoices):
        TOTP = "totp", "Authenticator app"
        WEBAUTHN = "webauthn", "Security key"

    user = models.ForeignKey(User, models.CASCADE, related_name="second_factors")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    name = models.CharField(max_length=100)
    secret = models.BinaryField()
    counter = models.BigIntegerField(
        default=0, help_text="The last accepted time step, or the key's signature counter."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "platform_second_factor"

    def __str__(self) -> str:
        return self.name


class RecoveryCode(models.Model):
    """The digest of a recovery code. Using the code deletes the row."""

    user = models.ForeignKey(User, models.CASCADE, related_name="recovery_codes")
    digest = models.CharField(max_length=64)

    class Meta:
        db_table = "platform_recovery_code"
        constraints = [models.UniqueConstraint(fields=["user", "digest"], name="platform_recovery_code_of_a_user")]

    def __str__(self) -> str:
        return self.digest[:8]
