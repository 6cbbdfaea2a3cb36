"""The settings that come from the environment, typed and checked in one go.

`read()` either returns a complete `Environment` or raises one error that names every variable that is
missing or bad, so that an operator mends a deployment in one round. Values never appear in the message:
some of them are secrets.
"""

from functools import cache
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Literal

from django.core.exceptions import ImproperlyConfigured
from pydantic import AnyHttpUrl, Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

Network = IPv4Network | IPv6Network
# Lists are written with commas; without NoDecode pydantic-settings would want JSON.
Names = Annotated[list[str], NoDecode]
Networks = Annotated[list[Network], NoDecode]


class Environment(BaseSettings):
    """Every variable that Sluice reads, under the names of the public contract, with its default."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    # Web
    secret_key: SecretStr = Field(min_length=32)
    secret_key_fallbacks: Annotated[list[SecretStr], NoDecode] = []
    debug: bool = False
    allowed_hosts: Names = []
    csrf_trusted_origins: Names = []
    trusted_proxy_cidrs: Networks = []
    metrics_allow_cidrs: Networks = [IPv4Network("127.0.0.0/8"), IPv6Network("::1/128")]
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["json", "console"] = "json"

    # Servers
    database_url: SecretStr
    database_pool_size: int = Field(10, ge=1)
    source_database_url: SecretStr | None = None
    redis_url: SecretStr
    celery_broker_url: SecretStr | None = None
    s3_endpoint_url: AnyHttpUrl | None = None
    s3_public_endpoint_url: AnyHttpUrl | None = None
    s3_region: str = "us-east-1"
    s3_bucket: str = Field(min_length=3, max_length=63)
    s3_access_key_id: SecretStr
    s3_secret_access_key: SecretStr
    s3_download_access_key_id: SecretStr | None = None
    s3_download_secret_access_key: SecretStr | None = None

    # Exports
    export_link_ttl_seconds: int = Field(600, ge=1)
    export_presign_seconds: int = Field(60, ge=1, le=60)
    export_job_retention_days: int = Field(7, ge=1)
    export_db_slots: int = Field(8, ge=1, le=1000)
    export_lease_seconds: int = Field(60, ge=3)
    export_reaper_seconds: int = Field(15, ge=1)
    export_max_attempts: int = Field(4, ge=1)
    export_backoff_base_seconds: float = Field(2, gt=0)
    export_backoff_max_seconds: float = Field(60, gt=0)
    export_max_chunks_per_job: int = Field(10_000, ge=1)

    @field_validator(
        "allowed_hosts",
        "csrf_trusted_origins",
        "trusted_proxy_cidrs",
        "metrics_allow_cidrs",
        "secret_key_fallbacks",
        mode="before",
    )
    @classmethod
    def split_commas(cls, value: object, info: ValidationInfo) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @model_validator(mode="after")
    def download_keys_come_as_a_pair(self) -> "Environment":
        if (self.s3_download_access_key_id is None) != (self.s3_download_secret_access_key is None):
            raise ValueError("S3_DOWNLOAD_ACCESS_KEY_ID and S3_DOWNLOAD_SECRET_ACCESS_KEY go together")
        return self

    @property
    def source_url(self) -> str:
        """The database that export functions are called in; the main one unless it is named."""
        return (self.source_database_url or self.database_url).get_secret_value()

    @property
    def broker_url(self) -> str:
        return (self.celery_broker_url or self.redis_url).get_secret_value()


def explain(error: ValidationError) -> str:
    """Return one line for each variable that is missing or bad, without the values."""
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        name = ".".join(str(part) for part in problem["loc"]).upper() or "environment"
        reason = "is not set" if problem["type"] == "missing" else problem["msg"]
        lines.append(f"  {name}: {reason}")
    return "\n".join(lines)


@cache
def read() -> Environment:
    values: dict[str, Any] = {}
    try:
        return Environment(**values)
    except ValidationError as error:
        raise ImproperlyConfigured(f"These settings are missing or bad:\n{explain(error)}") from None
