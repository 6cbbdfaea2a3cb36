"""Settings from environment variables, typed and validated.

`read()` returns a complete `Environment`, or raises one error that lists every missing or invalid variable, so that an
operator can fix all of them at once. The message never contains values, because some are secrets. A secret can also be
read from a file: SECRET_KEY_FILE names the file with SECRET_KEY, and so on.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import parse_qsl, urlsplit

import psycopg
from django.core.exceptions import ImproperlyConfigured
from psycopg.conninfo import conninfo_to_dict
from pydantic import (
    AfterValidator,
    AliasChoices,
    AnyHttpUrl,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

MAX_PORT = 65535
FILE_SUFFIX = "_FILE"  # SECRET_KEY_FILE has the path of the file with SECRET_KEY
OWN_PREFIXES = ("EXPORT_", "ETL_")  # of variables that only Sluice uses
CERTIFICATES = ("required", "optional", "none")  # modes of server certificate validation
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
RATE_UNITS = ("s", "sec", "second", "min", "minute", "h", "hour", "day")


# ---- Values -----------------------------------------------------------------------------------------------------
# Each message continues a sentence that starts with the variable's name. Errors are raised `from None`, because parsers
# quote their input.
def network(value: object) -> IPv4Network | IPv6Network:
    """Parse an IPv4 or IPv6 network. pydantic's union of both types would report each invalid value twice."""
    try:
        return ip_network(str(value))
    except ValueError:
        raise ValueError("is not a network such as 10.0.0.0/8") from None


def postgres_url(value: SecretStr) -> SecretStr:
    """Accept the formats of libpq, a URL or `host=… dbname=…`, if they have a database name."""
    try:
        parts = conninfo_to_dict(value.get_secret_value())
    except (psycopg.Error, UnicodeError):
        raise ValueError("is not a URL such as postgresql://user:password@host:5432/database") from None
    if not parts.get("dbname"):
        raise ValueError("has no database name")
    ports = str(parts.get("port") or "").split(",")  # one per host
    if not all(port == "" or (port.isdecimal() and 0 < int(port) <= MAX_PORT) for port in ports):
        raise ValueError(f"has a port that is not a number from 1 to {MAX_PORT}")
    return value


def url_of(*schemes: str) -> AfterValidator:
    """Return a validator of URLs, separated by `;` as Celery allows. Each needs a host (`unix`: a path)."""

    def check(value: SecretStr) -> SecretStr:
        for url in value.get_secret_value().split(";"):
            try:
                parts = urlsplit(url)
                host, _port = parts.hostname, parts.port
            except ValueError:
                raise ValueError("is not a URL with a host and a port") from None
            if parts.scheme not in schemes:
                raise ValueError(f"does not start with {'://, '.join(schemes)}://")
            if not (parts.path if parts.scheme == "unix" else host):
                raise ValueError("has no host")
            check_certificates(parts.query)
        return value

    return AfterValidator(check)


def dsn(value: SecretStr) -> SecretStr:
    """Accept the DSN of a Sentry project: key, host, and project number."""
    if not re.fullmatch(r"https?://[^\s/@:]+(:[^\s/@]+)?@[^\s/@]+(/[^\s/]+)*/\d+", value.get_secret_value()):
        raise ValueError("is not a DSN such as https://key@sentry.example.org/7")
    return value


def check_certificates(query: str) -> None:
    """Check the TLS parameters of a URL's query string. redis-py and Celery both support these names."""
    for name, value in parse_qsl(query):
        if name == "ssl_cert_reqs" and value not in CERTIFICATES:
            raise ValueError(f"has an invalid ssl_cert_reqs: use one of {', '.join(CERTIFICATES)}")
        if name in TLS_FILES and not Path(value).is_file():
            raise ValueError(f"has an {name} that is not a file on this machine")


def check_celery_parameters(url: SecretStr) -> SecretStr:
    """Reject query parameters for which Celery raises a TypeError when it sends the first message."""
    for address in url.get_secret_value().split(";"):
        if not all(name.startswith("ssl_") for name, _ in parse_qsl(urlsplit(address).query)):
            raise ValueError("has query parameters that Celery does not support: only ssl_* parameters are allowed")
    return url


def rate(value: str) -> str:
    """Accept `60/min`: a number and a unit of time."""
    amount, _, unit = (part.strip() for part in value.partition("/"))
    if not re.fullmatch(r"[1-9]\d{0,8}", amount) or unit not in RATE_UNITS:
        raise ValueError(f"is not a rate such as 60/min (units: {', '.join(RATE_UNITS)})")
    return f"{amount}/{unit}"


def matching(pattern: str, description: str) -> AfterValidator:
    """Return a validator for a regular expression. The error contains `description`."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"is not {description}")
        return value

    return AfterValidator(check)


def split_commas(value: object) -> object:
    """Split at commas, and at line ends for values from files."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in re.split(r"[,\r\n]", value) if part.strip()]


def at_least(name: str) -> AfterValidator:
    """Return a validator for a value that must be at least that of another variable."""

    def check(value: float, info: ValidationInfo) -> float:
        if value < info.data.get(name, value):
            raise ValueError(f"is less than {name.upper()}")
        return value

    return AfterValidator(check)


# Without NoDecode, pydantic-settings would expect JSON.
COMMAS = BeforeValidator(split_commas)
Names = Annotated[list[str], NoDecode, COMMAS]
Networks = Annotated[list[Annotated[IPv4Network | IPv6Network, BeforeValidator(network)]], NoDecode, COMMAS]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[str, AfterValidator(rate)]
Key = Annotated[SecretStr, Field(min_length=1)]
PostgresURL = Annotated[SecretStr, AfterValidator(postgres_url)]
RedisURL = Annotated[SecretStr, url_of("redis", "rediss", "unix")]
BrokerURL = Annotated[
    SecretStr, url_of("redis", "rediss", "amqp", "amqps", "pyamqp"), AfterValidator(check_celery_parameters)
]


# ---- Variables --------------------------------------------------------------------------------------------------
class Environment(BaseSettings):
    """Every variable that Sluice reads, with its public name and its default.

    The later of two variables checks a rule about both. A model validator would run only when every field is valid, so
    an operator would see its errors only after fixing all others. `info.data` has no entry for an invalid variable.
    """

    model_config = SettingsConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    # Web
    secret_key: SecretStr = Field(min_length=32)
    secret_key_fallbacks: Annotated[list[SecretStr], NoDecode, COMMAS] = []
    debug: bool = False
    allowed_hosts: Names = Field([], validate_default=True)
    csrf_trusted_origins: Names = []
    trusted_proxy_cidrs: Networks = []
    metrics_allow_cidrs: Networks = [IPv4Network("127.0.0.0/8"), IPv6Network("::1/128")]
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["json", "console"] = "json"
    tracing: bool = False
    tracing_parent_cidrs: Networks = []
    sentry_dsn: Annotated[SecretStr, AfterValidator(dsn)] | None = None

    # Sign-in
    oidc_issuer: (
        Annotated[str, matching(r"https?://[^\s/?#]+[^\s?#]*", "a URL such as https://sso.example.org")] | None
    ) = None
    oidc_client_id: str | None = None
    oidc_client_secret: SecretStr | None = Field(None, validate_default=True)
    oidc_groups_claim: str = "groups"
    oidc_user_groups: Names = []
    oidc_staff_groups: Names = []
    oidc_admin_groups: Names = []
    require_mfa: Literal["off", "staff", "all"] = "off"

    # Servers
    database_url: PostgresURL
    database_pool_size: int = Field(10, ge=1)
    database_prepare: bool = True
    source_database_url: PostgresURL | None = None
    redis_url: RedisURL
    celery_broker_url: BrokerURL | None = Field(None, validate_default=True)
    s3_endpoint_url: AnyHttpUrl | None = None
    s3_public_endpoint_url: AnyHttpUrl | None = None
    s3_region: str = "us-east-1"
    s3_bucket: str = Field(min_length=3, max_length=63)
    s3_access_key_id: Key
    s3_secret_access_key: Key
    s3_download_access_key_id: SecretStr | None = None
    s3_download_secret_access_key: SecretStr | None = Field(None, validate_default=True)

    # Exports
    export_link_ttl_seconds: int = Field(600, ge=1)
    export_delivery_ttl_seconds: int = Field(86_400, ge=1)
    export_delivery_ttl_max_seconds: Annotated[int, at_least("export_delivery_ttl_seconds")] = Field(
        604_800, validate_default=True
    )
    export_presign_seconds: int = Field(60, ge=1, le=60)
    export_job_retention_days: int = Field(7, ge=1)
    export_db_slots: int = Field(8, ge=1, le=1000)
    export_max_row_bytes: int = Field(32 * 1024**2, ge=1024**2, le=512 * 1024**2)
    export_lease_seconds: int = Field(60, ge=3)
    export_reaper_seconds: int = Field(15, ge=1)
    export_max_attempts: int = Field(4, ge=1)
    export_backoff_base_seconds: Seconds = 2
    export_backoff_max_seconds: Annotated[Seconds, at_least("export_backoff_base_seconds")] = Field(
        60, validate_default=True
    )
    export_storage_patience_seconds: int = Field(3600, ge=0)
    export_max_chunks_per_job: int = Field(10_000, ge=1)
    export_daily_jobs: int = Field(1_000, ge=0)
    export_daily_chunks: int = Field(100_000, ge=0)
    sign_in_rate: Rate = "10/min"
    export_rate: Rate = "60/min"
    export_poll_rate: Rate = "1200/min"
    export_download_rate: Rate = "600/min"
    export_schedule_catch_up: int = Field(10, ge=1, le=1000)
    export_bind_ip: Literal["prefix", "exact", "off"] = "prefix"
    export_bind_ua: bool = True
    export_webhook_allow_cidrs: Networks = []

    # Document ETL: run-state, queues, and stages
    etl_redis_url: RedisURL | None = None
    etl_redis_prefix: str = "etl:"
    etl_state_ttl_seconds: int = Field(86_400, ge=60)
    etl_state_terminal_ttl_seconds: int = Field(3_600, ge=1, validate_default=True)
    etl_arq_queue_name: Annotated[
        str, matching(r"[\w.-]{1,100}", "a name of letters, digits, dots, dashes, and underscores")
    ] = Field("etl", validation_alias=AliasChoices("ETL_ARQ_QUEUE_NAME", "ETL_QUEUE_NAME"))
    etl_queue_size: int = Field(1_000, ge=1)
    etl_max_open_per_user: int = Field(1_000, ge=0)
    etl_daily_documents: int = Field(5_000, ge=0)
    etl_daily_bytes: int = Field(5 * 1024**3, ge=0)
    etl_daily_rule_versions: int = Field(500, ge=0)
    etl_daily_rule_tests: int = Field(500, ge=0)
    etl_daily_tokens: int | None = Field(None, ge=0)
    etl_rule_daily_tokens: int | None = Field(None, ge=0)
    etl_retention_days: int = Field(0, ge=0)
    etl_worker_count: int = Field(3, ge=1)
    etl_task_timeout: int = Field(600, ge=1)
    etl_lease_seconds: int = Field(30, ge=3)
    etl_recovery_seconds: int = Field(30, ge=1)
    etl_ocr_max_attempts: int = Field(3, ge=1)
    etl_postprocess_max_attempts: int = Field(3, ge=1)
    etl_retry_backoff_base_seconds: Seconds = 2
    etl_retry_backoff_max_seconds: Annotated[Seconds, at_least("etl_retry_backoff_base_seconds")] = Field(
        60, validate_default=True
    )
    etl_cache_dir: Path = Path(".mineru_cache")
    etl_rate: Rate = "1200/min"
    etl_poll_rate: Rate = "6000/min"

    # Document ETL: documents and OCR
    etl_max_file_bytes: int = Field(50 * 1024**2, ge=1)
    etl_max_batch: int = Field(1_000, ge=1, le=10_000)
    etl_max_batch_bytes: int = Field(100 * 1024**2, ge=1)
    etl_max_pages: int = Field(500, ge=1)
    etl_max_pixels: int = Field(50_000_000, ge=1)
    etl_require_sandbox: bool = False
    etl_ocr_provider: Annotated[str, matching(r"local|mineru|\w+(\.\w+)+", "local, mineru, or a dotted path")] = "local"
    etl_mineru_url: AnyHttpUrl | None = Field(None, validate_default=True)
    etl_mineru_api_key: SecretStr | None = None
    etl_mineru_protocol: Literal["auto", "v3", "v4", "cloud-v4"] = "auto"
    etl_mineru_tier: Annotated[str, matching(r"[a-z0-9-]*", "a word such as basic")] = ""
    etl_mineru_result_hosts: Names = []

    # Document ETL: rules and post-processing
    etl_rules_dir: Path = Path(".etl_rules")
    etl_global_rule_enabled: bool = True
    etl_global_rule_id: int | None = Field(None, ge=1)
    etl_postprocess_chunk_threshold_chars: int = Field(24_000, ge=1)
    etl_postprocess_chunk_size_chars: int = Field(12_000, ge=200)
    etl_postprocess_max_chunks: int = Field(64, ge=1)
    etl_postprocess_parallel: int = Field(3, ge=1, le=16)
    etl_postprocess_long_strategy: str = "chunked-extract"
    etl_vision_max_pages: int = Field(100, ge=1)
    etl_vision_pages_per_call: int = Field(4, ge=1, le=50)
    etl_vision_max_pixels: int = Field(1_500_000, ge=100_000, le=16_000_000)
    etl_llm_base_url: AnyHttpUrl | None = None
    etl_llm_api_key: SecretStr | None = None
    etl_llm_model: str = ""
    etl_llm_timeout_seconds: Seconds = 120
    etl_llm_max_tokens: int | None = Field(None, ge=1)

    @field_validator("*", mode="before")
    @classmethod
    def treat_empty_as_unset(cls, value: object, info: ValidationInfo) -> object:
        """Return the default for an empty value of an optional variable or a folder.

        Path("") is the working directory, and the cleanup deletes old files from ETL_CACHE_DIR.
        """
        default = cls.model_fields[str(info.field_name)].default
        return default if value == "" and (default is None or isinstance(default, Path)) else value

    @field_validator("allowed_hosts")
    @classmethod
    def require_hosts(cls, hosts: list[str], info: ValidationInfo) -> list[str]:
        if not hosts and info.data.get("debug") is False:
            raise ValueError("is not set; only DEBUG=true allows that")
        return hosts

    @field_validator("oidc_client_secret")
    @classmethod
    def require_all_of_oidc(cls, secret: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        names = ("oidc_issuer", "oidc_client_id")
        given = [info.data[name] is not None for name in names if name in info.data] + [secret is not None]
        if any(given) and not all(given):
            raise ValueError("must be set together with OIDC_ISSUER and OIDC_CLIENT_ID: set all three or none")
        return secret

    @field_validator("celery_broker_url")
    @classmethod
    def require_broker(cls, url: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        redis_url = info.data.get("redis_url")
        if url is None and redis_url and redis_url.get_secret_value().startswith("unix:"):
            raise ValueError("is not set, and Celery does not support the unix:// scheme of REDIS_URL")
        if url is None and redis_url:
            try:
                check_celery_parameters(redis_url)
            except ValueError as reason:
                raise ValueError(f"is not set, and REDIS_URL {reason}") from None
        return url

    @field_validator("s3_download_secret_access_key")
    @classmethod
    def require_both_download_keys(cls, secret: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        name = "s3_download_access_key_id"
        if name in info.data and (info.data[name] is None) != (secret is None):
            raise ValueError("must be set together with S3_DOWNLOAD_ACCESS_KEY_ID: set both or neither")
        return secret

    @field_validator("etl_state_terminal_ttl_seconds")
    @classmethod
    def check_terminal_ttl(cls, seconds: int, info: ValidationInfo) -> int:
        if seconds > info.data.get("etl_state_ttl_seconds", seconds):
            raise ValueError("is more than ETL_STATE_TTL_SECONDS")
        return seconds

    @field_validator("etl_mineru_url")
    @classmethod
    def require_mineru_url(cls, url: AnyHttpUrl | None, info: ValidationInfo) -> AnyHttpUrl | None:
        if url is None and info.data.get("etl_ocr_provider") == "mineru":
            raise ValueError("is not set, and ETL_OCR_PROVIDER is mineru")
        return url

    @classmethod
    def names(cls) -> set[str]:
        """Return the names of all variables that are read."""
        files = {f"{name}{FILE_SUFFIX}" for name in cls.secrets()}
        return {name.upper() for name in cls.model_fields} | {"ETL_QUEUE_NAME"} | files

    @classmethod
    def secrets(cls) -> list[str]:
        """Return the names of the secret variables. Only these can be read from files."""
        return [name.upper() for name, field in cls.model_fields.items() if holds_secret(field.annotation)]

    @property
    def source_url(self) -> str:
        """URL of the database with the datasets' functions: by default, the main database."""
        return (self.source_database_url or self.database_url).get_secret_value()

    @property
    def run_state_url(self) -> str:
        """URL of the Redis server with the run-state of document tasks."""
        return (self.etl_redis_url or self.redis_url).get_secret_value()

    @property
    def broker_url(self) -> str:
        return (self.celery_broker_url or self.redis_url).get_secret_value()


def holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(holds_secret, get_args(annotation)))


# ---- Secrets in files -------------------------------------------------------------------------------------------
INVALID = object()


def read_secret_files(variables: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return secrets read from files, by field, and errors, by variable.

    The field of a secret with an error gets an invalid value, so that it is not reported as missing.
    """
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name in Environment.secrets():
        if path := variables.get(f"{name}{FILE_SUFFIX}"):
            try:
                values[name.lower()] = content(path, conflicting=name if variables.get(name) else "")
            except ValueError as error:
                values[name.lower()] = INVALID
                errors[name] = f"{name}{FILE_SUFFIX}: {error}"
    return values, errors


def content(path: str, *, conflicting: str) -> str:
    """Return the content of a secret's file without trailing line breaks. A ValueError does not contain the secret.

    `conflicting` is the variable that also sets the secret, or "".
    """
    if conflicting:
        raise ValueError(f"is set together with {conflicting}: set only one")
    try:
        text = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"names a file that cannot be read: {error.strerror}") from None
    except UnicodeError:
        raise ValueError("names a file that is not text") from None
    if not text:
        raise ValueError("names a file that is empty")
    return text


# ---- Problems ---------------------------------------------------------------------------------------------------
def explain(error: ValidationError, *, reported: Collection[str] = ()) -> Iterator[str]:
    """Yield a line for each missing or invalid variable, without its value. Skip those in `reported`."""
    for problem in error.errors(include_input=False, include_url=False):
        name, *place = problem["loc"]
        if str(name).upper() in reported:
            continue
        item = f"'item {int(place[0]) + 1}' " if place else ""
        yield f"{str(name).upper()}: {item}{reason(problem['type'], problem['msg'], problem.get('ctx', {}))}"


def reason(kind: str, message: str, context: dict[str, Any]) -> str:
    if kind == "missing" or (kind == "too_short" and context["actual_length"] == 0):
        return "is not set"
    if kind == "too_short":  # pydantic counts the characters of a secret as "items"
        return f"is shorter than {context['min_length']} characters"
    return message.removeprefix("Value error, ")


def misspelled(names: Iterable[str]) -> Iterator[str]:
    """Yield a line for each misspelled EXPORT_ or ETL_ variable. Other programs may use variables such as S3_*."""
    known = [name for name in Environment.names() if name.startswith(OWN_PREFIXES)]
    for name in sorted(names):
        if name.upper().startswith(OWN_PREFIXES) and name.upper() not in known:
            for meant in get_close_matches(name.upper(), known, n=1, cutoff=0.75):
                yield f"{name}: is not a setting; did you mean {meant}?"


@cache
def read() -> Environment:
    values, errors = read_secret_files({name.upper(): value for name, value in os.environ.items()})
    problems = [*errors.values(), *misspelled(os.environ)]
    try:
        environment = Environment(**values)
    except ValidationError as error:
        problems = [*explain(error, reported=errors), *problems]
    if problems:
        raise ImproperlyConfigured("\n  ".join(["These settings are missing or invalid:", *problems]))
    return environment
