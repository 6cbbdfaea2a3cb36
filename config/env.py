"""The settings that come from the environment, typed and checked in one go.

`read()` either returns a complete `Environment` or raises one error that names every variable that is
missing or bad, so that an operator mends a deployment in one round. Values never appear in the message:
some of them are secrets. Each of these can be in a file instead, which SECRET_KEY_FILE and the like then name.
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
IN_FILE = "_FILE"  # after the name of a secret: the variable that names the file it is in
OURS = ("EXPORT_", "ETL_")  # variables that begin so belong to Sluice alone
CERTIFICATES = ("required", "optional", "none")  # how those of servers are checked
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
RATE_UNITS = ("s", "sec", "second", "min", "minute", "h", "hour", "day")


# ---- Values -----------------------------------------------------------------------------------------------------
# Each reason goes on after the variable's name. Errors are raised `from None`: parsers quote what they were given.
def network(value: object) -> IPv4Network | IPv6Network:
    """Return a network of either kind; pydantic's own union would report each bad one twice."""
    try:
        return ip_network(str(value))
    except ValueError:
        raise ValueError("is not a network such as 10.0.0.0/8") from None


def postgres_url(value: SecretStr) -> SecretStr:
    """Accept what libpq does, a URL or `host=… dbname=…`, if it names a database."""
    try:
        parts = conninfo_to_dict(value.get_secret_value())
    except (psycopg.Error, UnicodeError):
        raise ValueError("is not a URL such as postgresql://user:password@host:5432/database") from None
    if not parts.get("dbname"):
        raise ValueError("names no database")
    ports = str(parts.get("port") or "").split(",")  # one for each host
    if not all(port == "" or (port.isdecimal() and 0 < int(port) <= MAX_PORT) for port in ports):
        raise ValueError(f"has a port that is not a number from 1 to {MAX_PORT}")
    return value


def url_of(*schemes: str) -> AfterValidator:
    """Return a check that a URL, or each of several with `;` as Celery takes them, names a host (`unix`: a path)."""

    def check(value: SecretStr) -> SecretStr:
        for url in value.get_secret_value().split(";"):
            try:
                parts = urlsplit(url)
                host, _port = parts.hostname, parts.port
            except ValueError:
                raise ValueError("is not a URL with a host and a port") from None
            if parts.scheme not in schemes:
                raise ValueError(f"does not begin with {', '.join(schemes)} and ://")
            if not (parts.path if parts.scheme == "unix" else host):
                raise ValueError("names no host")
            check_certificates(parts.query)
        return value

    return AfterValidator(check)


def dsn(value: SecretStr) -> SecretStr:
    """Accept what Sentry gives to a project: an address with a key before it and a number behind."""
    if not re.fullmatch(r"https?://[^\s/@:]+(:[^\s/@]+)?@[^\s/@]+(/[^\s/]+)*/\d+", value.get_secret_value()):
        raise ValueError("is not a DSN such as https://key@sentry.example.org/7")
    return value


def check_certificates(query: str) -> None:
    """Check what of TLS a URL says after its `?`, in the words that redis-py and Celery both know."""
    for name, value in parse_qsl(query):
        if name == "ssl_cert_reqs" and value not in CERTIFICATES:
            raise ValueError(f"has an ssl_cert_reqs that is none of {', '.join(CERTIFICATES)}")
        if name in TLS_FILES and not Path(value).is_file():
            raise ValueError(f"has an {name} that is no file here")


def celery_takes(url: SecretStr) -> SecretStr:
    """Refuse what Celery would raise a TypeError of, when the first message is sent."""
    for one in url.get_secret_value().split(";"):
        if not all(name.startswith("ssl_") for name, _ in parse_qsl(urlsplit(one).query)):
            raise ValueError("has something after its ? that Celery does not take: only what begins with ssl_")
    return url


def rate(value: str) -> str:
    """Accept `60/min`: a number, and a unit of time."""
    amount, _, unit = (part.strip() for part in value.partition("/"))
    if not re.fullmatch(r"[1-9]\d{0,8}", amount) or unit not in RATE_UNITS:
        raise ValueError(f"is not a rate such as 60/min (units: {', '.join(RATE_UNITS)})")
    return f"{amount}/{unit}"


def spelt(pattern: str, form: str) -> AfterValidator:
    """Return a check that a value looks like this; the form is told in words."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"is not {form}")
        return value

    return AfterValidator(check)


# Lists are written with commas; without NoDecode pydantic-settings would want JSON.
Names = Annotated[list[str], NoDecode]
Networks = Annotated[list[Annotated[IPv4Network | IPv6Network, BeforeValidator(network)]], NoDecode]
Rate = Annotated[str, AfterValidator(rate)]
Key = Annotated[SecretStr, Field(min_length=1)]
PostgresURL = Annotated[SecretStr, AfterValidator(postgres_url)]
RedisURL = Annotated[SecretStr, url_of("redis", "rediss", "unix")]
BrokerURL = Annotated[SecretStr, url_of("redis", "rediss", "amqp", "amqps", "pyamqp"), AfterValidator(celery_takes)]


# ---- Variables --------------------------------------------------------------------------------------------------
class Environment(BaseSettings):
    """Every variable that Sluice reads, under the names of the public contract, with its default.

    What depends on two variables is checked at the later one: a validator of the model runs only when every field is
    good, and would be reported in a second round. A variable that is bad itself is absent from `info.data`.
    """

    model_config = SettingsConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    # Web
    secret_key: SecretStr = Field(min_length=32)
    secret_key_fallbacks: Annotated[list[SecretStr], NoDecode] = []
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
    export_presign_seconds: int = Field(60, ge=1, le=60)
    export_job_retention_days: int = Field(7, ge=1)
    export_db_slots: int = Field(8, ge=1, le=1000)
    export_lease_seconds: int = Field(60, ge=3)
    export_reaper_seconds: int = Field(15, ge=1)
    export_max_attempts: int = Field(4, ge=1)
    export_backoff_base_seconds: float = Field(2, gt=0, allow_inf_nan=False)
    export_backoff_max_seconds: float = Field(60, gt=0, allow_inf_nan=False, validate_default=True)
    export_max_chunks_per_job: int = Field(10_000, ge=1)
    export_daily_jobs: int = Field(1_000, ge=0)
    export_daily_chunks: int = Field(100_000, ge=0)
    sign_in_rate: Rate = "10/min"
    export_rate: Rate = "60/min"
    export_poll_rate: Rate = "1200/min"
    export_download_rate: Rate = "600/min"
    export_bind_ip: Literal["prefix", "exact", "off"] = "prefix"
    export_bind_ua: bool = True
    export_webhook_allow_cidrs: Networks = []

    # Document ETL: run-state, queues and stages
    etl_redis_url: RedisURL | None = None
    etl_redis_prefix: str = "etl:"
    etl_state_ttl_seconds: int = Field(86_400, ge=60)
    etl_state_terminal_ttl_seconds: int = Field(3_600, ge=1, validate_default=True)
    etl_arq_queue_name: Annotated[str, spelt(r"[\w.-]{1,100}", "a name of letters, digits, dots and dashes")] = Field(
        "etl", validation_alias=AliasChoices("ETL_ARQ_QUEUE_NAME", "ETL_QUEUE_NAME")
    )
    etl_queue_size: int = Field(1_000, ge=1)
    etl_worker_count: int = Field(3, ge=1)
    etl_task_timeout: int = Field(600, ge=1)
    etl_lease_seconds: int = Field(30, ge=3)
    etl_recovery_seconds: int = Field(30, ge=1)
    etl_ocr_max_attempts: int = Field(3, ge=1)
    etl_postprocess_max_attempts: int = Field(3, ge=1)
    etl_retry_backoff_base_seconds: float = Field(2, gt=0, allow_inf_nan=False)
    etl_retry_backoff_max_seconds: float = Field(60, gt=0, allow_inf_nan=False, validate_default=True)
    etl_cache_dir: Path = Path(".mineru_cache")
    etl_rate: Rate = "1200/min"
    etl_poll_rate: Rate = "6000/min"

    # Document ETL: documents and OCR
    etl_max_file_bytes: int = Field(50 * 1024**2, ge=1)
    etl_max_pages: int = Field(500, ge=1)
    etl_max_pixels: int = Field(50_000_000, ge=1)
    etl_ocr_provider: Annotated[str, spelt(r"local|mineru|\w+(\.\w+)+", "local, mineru, or a dotted path")] = "local"
    etl_mineru_url: AnyHttpUrl | None = Field(None, validate_default=True)
    etl_mineru_api_key: SecretStr | None = None
    etl_mineru_protocol: Literal["auto", "v3", "v4", "cloud-v4"] = "auto"
    etl_mineru_tier: Annotated[str, spelt(r"[a-z0-9-]*", "a word such as basic")] = ""
    etl_mineru_result_hosts: Names = []

    # Document ETL: rules and post-processing
    etl_rules_dir: Path = Path(".etl_rules")
    etl_global_rule_enabled: bool = True
    etl_global_rule_id: int | None = Field(None, ge=1)
    etl_postprocess_chunk_threshold_chars: int = Field(24_000, ge=1)
    etl_postprocess_chunk_size_chars: int = Field(8_000, ge=200)
    etl_postprocess_max_chunks: int = Field(64, ge=1)
    etl_postprocess_long_strategy: str = "chunked-extract"
    etl_llm_base_url: AnyHttpUrl | None = None
    etl_llm_api_key: SecretStr | None = None
    etl_llm_model: str = ""
    etl_llm_timeout_seconds: float = Field(120, gt=0, allow_inf_nan=False)
    etl_llm_max_tokens: int | None = Field(None, ge=1)

    @field_validator(
        "allowed_hosts",
        "csrf_trusted_origins",
        "trusted_proxy_cidrs",
        "metrics_allow_cidrs",
        "tracing_parent_cidrs",
        "export_webhook_allow_cidrs",
        "etl_mineru_result_hosts",
        "secret_key_fallbacks",
        mode="before",
    )
    @classmethod
    def split_commas(cls, value: object) -> object:
        """In a file each may have a line."""
        if not isinstance(value, str):
            return value
        return [part.strip() for part in re.split(r"[,\r\n]", value) if part.strip()]

    @field_validator(
        "sentry_dsn",
        "source_database_url",
        "celery_broker_url",
        "s3_download_access_key_id",
        "s3_download_secret_access_key",
        "etl_redis_url",
        "etl_mineru_url",
        "etl_mineru_api_key",
        "etl_global_rule_id",
        "etl_llm_base_url",
        "etl_llm_api_key",
        "etl_llm_max_tokens",
        mode="before",
    )
    @classmethod
    def empty_is_not_set(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("etl_cache_dir", "etl_rules_dir", mode="before")
    @classmethod
    def empty_is_no_folder(cls, value: object, info: ValidationInfo) -> object:
        # It would be the one that we happen to be started in, and from ETL_CACHE_DIR old things are deleted.
        return cls.model_fields[str(info.field_name)].default if value == "" else value

    @field_validator("allowed_hosts")
    @classmethod
    def hosts_are_named(cls, hosts: list[str], info: ValidationInfo) -> list[str]:
        if not hosts and info.data.get("debug") is False:
            raise ValueError("is not set, which only DEBUG=true allows")
        return hosts

    @field_validator("celery_broker_url")
    @classmethod
    def celery_has_a_broker(cls, url: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        redis_url = info.data.get("redis_url")
        if url is None and redis_url and redis_url.get_secret_value().startswith("unix:"):
            raise ValueError("is not set, and Celery does not take the unix:// of REDIS_URL")
        if url is None and redis_url:
            try:
                celery_takes(redis_url)
            except ValueError as reason:
                raise ValueError(f"is not set, and REDIS_URL {reason}") from None
        return url

    @field_validator("s3_download_secret_access_key")
    @classmethod
    def download_keys_come_as_a_pair(cls, secret: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        name = "s3_download_access_key_id"
        if name in info.data and (info.data[name] is None) != (secret is None):
            raise ValueError("goes together with S3_DOWNLOAD_ACCESS_KEY_ID: set both or neither")
        return secret

    @field_validator("export_backoff_max_seconds")
    @classmethod
    def backoff_grows(cls, seconds: float, info: ValidationInfo) -> float:
        if seconds < info.data.get("export_backoff_base_seconds", 0):
            raise ValueError("is less than EXPORT_BACKOFF_BASE_SECONDS")
        return seconds

    @field_validator("etl_retry_backoff_max_seconds")
    @classmethod
    def etl_backoff_grows(cls, seconds: float, info: ValidationInfo) -> float:
        if seconds < info.data.get("etl_retry_backoff_base_seconds", 0):
            raise ValueError("is less than ETL_RETRY_BACKOFF_BASE_SECONDS")
        return seconds

    @field_validator("etl_state_terminal_ttl_seconds")
    @classmethod
    def ends_are_forgotten_first(cls, seconds: int, info: ValidationInfo) -> int:
        if seconds > info.data.get("etl_state_ttl_seconds", seconds):
            raise ValueError("is more than ETL_STATE_TTL_SECONDS")
        return seconds

    @field_validator("etl_mineru_url")
    @classmethod
    def mineru_has_an_address(cls, url: AnyHttpUrl | None, info: ValidationInfo) -> AnyHttpUrl | None:
        if url is None and info.data.get("etl_ocr_provider") == "mineru":
            raise ValueError("is not set, and ETL_OCR_PROVIDER is mineru")
        return url

    @classmethod
    def names(cls) -> set[str]:
        """Return the names of all variables that are read."""
        files = {f"{name}{IN_FILE}" for name in cls.secrets()}
        return {name.upper() for name in cls.model_fields} | {"ETL_QUEUE_NAME"} | files

    @classmethod
    def secrets(cls) -> list[str]:
        """Return the names of the variables that hold secrets: exactly those that can be in files."""
        return [name.upper() for name, field in cls.model_fields.items() if holds_secret(field.annotation)]

    @property
    def source_url(self) -> str:
        """The database that export functions are called in; the main one unless it is named."""
        return (self.source_database_url or self.database_url).get_secret_value()

    @property
    def run_state_url(self) -> str:
        """Where the run-state of document tasks lives."""
        return (self.etl_redis_url or self.redis_url).get_secret_value()

    @property
    def broker_url(self) -> str:
        return (self.celery_broker_url or self.redis_url).get_secret_value()


def holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(holds_secret, get_args(annotation)))


# ---- Secrets in files -------------------------------------------------------------------------------------------
UNFIT = object()


def from_files(variables: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the secrets that are in files, by field; and by its name what is wrong with a variable that names one.

    The field of such a variable is given something that no field takes, so that nothing is said of its absence.
    """
    values: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name in Environment.secrets():
        if path := variables.get(f"{name}{IN_FILE}"):
            try:
                values[name.lower()] = content(path, beside=name if variables.get(name) else "")
            except ValueError as error:
                values[name.lower()] = UNFIT
                wrong[name] = f"{name}{IN_FILE}: {error}"
    return values, wrong


def content(path: str, *, beside: str) -> str:
    """Return what is in a file, without the end of its last line. Raises ValueError, which does not show it."""
    if beside:
        raise ValueError(f"is set, and {beside} is too: set one of them")
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
def explain(error: ValidationError, *, told: Collection[str] = ()) -> Iterator[str]:
    """Yield a sentence for each variable that is missing or bad, without the values; not for those `told` of."""
    for problem in error.errors(include_input=False, include_url=False):
        name, *place = problem["loc"]
        if str(name).upper() in told:
            continue
        item = f"'item {int(place[0]) + 1}' " if place else ""
        yield f"{str(name).upper()}: {item}{reason(problem['type'], problem['msg'], problem.get('ctx', {}))}"


def reason(kind: str, message: str, context: dict[str, Any]) -> str:
    if kind == "missing" or (kind == "too_short" and context["actual_length"] == 0):
        return "is not set"
    if kind == "too_short":  # pydantic counts the characters of a secret as "items"
        return f"is shorter than {context['min_length']} characters"
    return message.removeprefix("Value error, ")


def misspelt(names: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each variable that is nearly one of ours. S3_* and the like belong to other programs too."""
    ours = [name for name in Environment.names() if name.startswith(OURS)]
    for name in sorted(names):
        if name.upper().startswith(OURS) and name.upper() not in ours:
            for meant in get_close_matches(name.upper(), ours, n=1, cutoff=0.75):
                yield f"{name}: is not a setting; did you mean {meant}?"


@cache
def read() -> Environment:
    values, wrong = from_files({name.upper(): value for name, value in os.environ.items()})
    problems = [*wrong.values(), *misspelt(os.environ)]
    try:
        environment = Environment(**values)
    except ValidationError as error:
        problems = [*explain(error, told=wrong), *problems]
    if problems:
        raise ImproperlyConfigured("\n  ".join(["These settings are missing or bad:", *problems]))
    return environment
