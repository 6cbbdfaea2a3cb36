"""Settings from environment variables and files. All errors are reported together, and without the values."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from config import env
from config.env import Environment

PROJECT = Path(__file__).parents[2]
SECRET = "hunter2"  # a part of the invalid values, which messages must not contain
KEY = "0123456789abcdef" * 2
REQUIRED = {
    "SECRET_KEY": KEY,
    "ALLOWED_HOSTS": "sluice.example",
    "DATABASE_URL": "postgresql://sluice:secret@db:5432/sluice",
    "REDIS_URL": "redis://:secret@valkey:6379/0",
    "S3_BUCKET": "exports",
    "S3_ACCESS_KEY_ID": "id",
    "S3_SECRET_ACCESS_KEY": "secret",
}
# The documented defaults.
DEFAULTS = {
    "EXPORT_LINK_TTL_SECONDS": 600,
    "EXPORT_DELIVERY_TTL_SECONDS": 86400,
    "EXPORT_DELIVERY_TTL_MAX_SECONDS": 604800,
    "EXPORT_PRESIGN_SECONDS": 60,
    "EXPORT_JOB_RETENTION_DAYS": 7,
    "EXPORT_DB_SLOTS": 8,
    "EXPORT_LEASE_SECONDS": 60,
    "EXPORT_REAPER_SECONDS": 15,
    "EXPORT_MAX_ATTEMPTS": 4,
    "EXPORT_BACKOFF_BASE_SECONDS": 2,
    "EXPORT_BACKOFF_MAX_SECONDS": 60,
    "EXPORT_STORAGE_PATIENCE_SECONDS": 3600,
    "EXPORT_MAX_CHUNKS_PER_JOB": 10000,
    "EXPORT_DAILY_JOBS": 1000,
    "EXPORT_DAILY_CHUNKS": 100000,
    "EXPORT_SCHEDULE_CATCH_UP": 10,
    "SIGN_IN_RATE": "10/min",
    "OIDC_ISSUER": None,
    "OIDC_CLIENT_ID": None,
    "OIDC_CLIENT_SECRET": None,
    "OIDC_GROUPS_CLAIM": "groups",
    "OIDC_USER_GROUPS": [],
    "OIDC_STAFF_GROUPS": [],
    "OIDC_ADMIN_GROUPS": [],
    "REQUIRE_MFA": "off",
    "EXPORT_RATE": "60/min",
    "EXPORT_POLL_RATE": "1200/min",
    "EXPORT_DOWNLOAD_RATE": "600/min",
    "EXPORT_BIND_IP": "prefix",
    "EXPORT_BIND_UA": True,
    "EXPORT_WEBHOOK_ALLOW_CIDRS": [],
    "ETL_REDIS_URL": None,
    "ETL_REDIS_PREFIX": "etl:",
    "ETL_STATE_TTL_SECONDS": 86400,
    "ETL_STATE_TERMINAL_TTL_SECONDS": 3600,
    "ETL_ARQ_QUEUE_NAME": "etl",
    "ETL_QUEUE_SIZE": 1000,
    "ETL_MAX_OPEN_PER_USER": 1000,
    "ETL_DAILY_DOCUMENTS": 5000,
    "ETL_DAILY_BYTES": 5368709120,
    "ETL_DAILY_TOKENS": None,
    "ETL_RULE_DAILY_TOKENS": None,
    "ETL_VISION_MAX_PAGES": 100,
    "ETL_VISION_PAGES_PER_CALL": 4,
    "ETL_VISION_MAX_PIXELS": 1500000,
    "ETL_DAILY_RULE_VERSIONS": 500,
    "ETL_DAILY_RULE_TESTS": 500,
    "ETL_RETENTION_DAYS": 0,
    "ETL_REQUIRE_SANDBOX": False,
    "ETL_WORKER_COUNT": 3,
    "ETL_TASK_TIMEOUT": 600,
    "ETL_LEASE_SECONDS": 30,
    "ETL_RECOVERY_SECONDS": 30,
    "ETL_OCR_MAX_ATTEMPTS": 3,
    "ETL_POSTPROCESS_MAX_ATTEMPTS": 3,
    "ETL_RETRY_BACKOFF_BASE_SECONDS": 2,
    "ETL_RETRY_BACKOFF_MAX_SECONDS": 60,
    "ETL_CACHE_DIR": Path(".mineru_cache"),
    "ETL_RATE": "1200/min",
    "ETL_POLL_RATE": "6000/min",
    "ETL_MAX_FILE_BYTES": 50 * 1024**2,
    "ETL_MAX_BATCH": 1000,
    "ETL_MAX_BATCH_BYTES": 100 * 1024**2,
    "ETL_MAX_PAGES": 500,
    "ETL_MAX_PIXELS": 50_000_000,
    "ETL_OCR_PROVIDER": "local",
    "ETL_MINERU_URL": None,
    "ETL_MINERU_API_KEY": None,
    "ETL_MINERU_PROTOCOL": "auto",
    "ETL_MINERU_TIER": "",
    "ETL_MINERU_RESULT_HOSTS": [],
    "ETL_RULES_DIR": Path(".etl_rules"),
    "ETL_GLOBAL_RULE_ENABLED": True,
    "ETL_GLOBAL_RULE_ID": None,
    "ETL_POSTPROCESS_CHUNK_THRESHOLD_CHARS": 24_000,
    "ETL_POSTPROCESS_CHUNK_SIZE_CHARS": 12_000,
    "ETL_POSTPROCESS_MAX_CHUNKS": 64,
    "ETL_POSTPROCESS_LONG_STRATEGY": "chunked-extract",
    "ETL_LLM_BASE_URL": None,
    "ETL_LLM_API_KEY": None,
    "ETL_LLM_MODEL": "",
    "ETL_LLM_TIMEOUT_SECONDS": 120,
    "ETL_LLM_MAX_TOKENS": None,
}
NO_POSTGRES_URL = "is not a URL such as postgresql://user:password@host:5432/database"
NO_PORT = "has a port that is not a number from 1 to 65535"
NO_REDIS = "does not start with redis://, rediss://, unix://"
NO_BROKER = "does not start with redis://, rediss://, amqp://, amqps://, pyamqp://"
NO_OPTION = "has query parameters that Celery does not support: only ssl_* parameters are allowed"
NO_CHECK = "has an invalid ssl_cert_reqs: use one of required, optional, none"
NO_URL = "is not a URL with a host and a port"
NO_PAIR = "must be set together with S3_DOWNLOAD_ACCESS_KEY_ID: set both or neither"
NO_NETWORK = "is not a network such as 10.0.0.0/8"

Read = Callable[..., Environment]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """A function that reads settings from the required variables and the given ones.

    It does not change the cached settings.
    """

    def read(**variables: str | None) -> Environment:
        for name in list(os.environ):
            if name.lower() in Environment.model_fields or name.startswith(("EXPORT_", "ETL_")):
                monkeypatch.delenv(name)
        for name, value in {**REQUIRED, **variables}.items():
            if value is not None:
                monkeypatch.setenv(name, value)
        return env.read.__wrapped__()

    return read


def problems(read: Read, **variables: str | None) -> list[str]:
    with pytest.raises(ImproperlyConfigured) as caught:
        read(**variables)
    first, *rest = str(caught.value).splitlines()
    assert first == "These settings are missing or invalid:"
    assert SECRET not in str(caught.value)
    return [line.removeprefix("  ") for line in rest]


def test_it_has_the_defaults_of_the_contract(read: Read) -> None:
    """B11."""
    settings = read()

    assert {name: getattr(settings, name.lower()) for name in DEFAULTS} == DEFAULTS
    assert [str(network) for network in settings.metrics_allow_cidrs] == ["127.0.0.0/8", "::1/128"]
    assert settings.trusted_proxy_cidrs == []
    assert settings.debug is False
    assert settings.source_url == REQUIRED["DATABASE_URL"]
    assert settings.broker_url == REQUIRED["REDIS_URL"]


def test_it_splits_lists_at_commas(read: Read) -> None:
    settings = read(ALLOWED_HOSTS=" a.example, ,b.example,", TRUSTED_PROXY_CIDRS="10.0.0.0/8,fd00::/8", DEBUG="1")

    assert settings.allowed_hosts == ["a.example", "b.example"]
    assert [str(network) for network in settings.trusted_proxy_cidrs] == ["10.0.0.0/8", "fd00::/8"]


@pytest.mark.parametrize("value", [None, ""])
def test_it_reports_all_missing_variables_together(read: Read, value: str | None) -> None:
    found = problems(read, **dict.fromkeys(REQUIRED, value))

    assert [line.partition(":")[0] for line in found] == list(REQUIRED)
    assert found[:2] == ["SECRET_KEY: is not set", "ALLOWED_HOSTS: is not set; only DEBUG=true allows that"]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("SECRET_KEY", "hunter2", "is shorter than 32 characters"),
        ("DATABASE_URL", "hunter2", NO_POSTGRES_URL),
        ("DATABASE_URL", "http://u:hunter2@db/sluice", NO_POSTGRES_URL),
        ("DATABASE_URL", "postgresql://u:hunter2@db/sluice?hunter2=1", NO_POSTGRES_URL),
        ("DATABASE_URL", "postgresql://u:hunter2%ff@db/sluice", NO_POSTGRES_URL),
        ("DATABASE_URL", "postgresql://u:hunter2@db:5432", "has no database name"),
        ("DATABASE_URL", "host=db password=hunter2", "has no database name"),
        ("DATABASE_URL", "postgresql://u:hunter2@db:hunter2/sluice", NO_PORT),
        ("DATABASE_URL", "postgresql://u:hunter2@one:5432,two:65536/sluice", NO_PORT),
        ("SOURCE_DATABASE_URL", "postgresql://u:hunter2@db:0/sluice", NO_PORT),
        ("REDIS_URL", "hunter2", NO_REDIS),
        ("REDIS_URL", "http://hunter2", NO_REDIS),
        ("REDIS_URL", "redis://:hunter2@valkey:hunter2/0", NO_URL),
        ("REDIS_URL", "redis://:hunter2@valkey:65536/0", NO_URL),
        ("REDIS_URL", "redis://:hunter2@[::1/0", NO_URL),
        ("REDIS_URL", "redis://hunter2\u2100/0", NO_URL),  # the exception of urlsplit contains the host
        ("REDIS_URL", "redis://:hunter2@/0", "has no host"),
        ("REDIS_URL", "unix://", "has no host"),
        ("CELERY_BROKER_URL", "http://hunter2", NO_BROKER),
        ("CELERY_BROKER_URL", "unix:///hunter2", NO_BROKER),
        ("CELERY_BROKER_URL", "amqp://one:5672;amqp://:hunter2@two:hunter2", NO_URL),
        ("CELERY_BROKER_URL", "sentinel://:hunter2@one:26379", NO_BROKER),
        ("CELERY_BROKER_URL", "redis://:hunter2@one?socket_timeout=1", NO_OPTION),
        ("CELERY_BROKER_URL", "rediss://:hunter2@one?ssl_cert_reqs=CERT_REQUIRED", NO_CHECK),
        (
            "REDIS_URL",
            "rediss://:hunter2@one?ssl_ca_certs=/hunter2",
            "has an ssl_ca_certs that is not a file on this machine",
        ),
        ("S3_PUBLIC_ENDPOINT_URL", "hunter2", "Input should be a valid URL, relative URL without a base"),
        ("S3_DOWNLOAD_SECRET_ACCESS_KEY", "hunter2", NO_PAIR),
        ("TRUSTED_PROXY_CIDRS", "hunter2", f"'item 1' {NO_NETWORK}"),
        ("METRICS_ALLOW_CIDRS", "::1, 10.0.0.1/8", f"'item 2' {NO_NETWORK}"),
        ("LOG_LEVEL", "hunter2", "Input should be 'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
        ("EXPORT_DB_SLOTS", "hunter2", "Input should be a valid integer, unable to parse string as an integer"),
        ("EXPORT_PRESIGN_SECONDS", "61", "Input should be less than or equal to 60"),
        ("EXPORT_BACKOFF_MAX_SECONDS", "1.5", "is less than EXPORT_BACKOFF_BASE_SECONDS"),
        ("EXPORT_DELIVERY_TTL_MAX_SECONDS", "86399", "is less than EXPORT_DELIVERY_TTL_SECONDS"),
        ("EXPORT_BACKOFF_MAX_SECONDS", "inf", "Input should be a finite number"),
        ("ETL_RETRY_BACKOFF_MAX_SECONDS", "1.5", "is less than ETL_RETRY_BACKOFF_BASE_SECONDS"),
        ("ETL_STATE_TERMINAL_TTL_SECONDS", "86401", "is more than ETL_STATE_TTL_SECONDS"),
        ("ETL_ARQ_QUEUE_NAME", "hunter2 queue", "is not a name of letters, digits, dots, dashes, and underscores"),
        ("ETL_OCR_PROVIDER", "hunter2", "is not local, mineru, or a dotted path"),
        ("ETL_MINERU_TIER", "hunter2!", "is not a word such as basic"),
        ("ETL_REDIS_URL", "http://hunter2", NO_REDIS),
    ],
)  # fmt: skip
def test_it_reports_an_invalid_value_once_without_quoting_it(read: Read, name: str, value: str, reason: str) -> None:
    assert problems(read, **{name: value}) == [f"{name}: {reason}"]


def test_mineru_requires_an_address(read: Read) -> None:
    assert problems(read, ETL_OCR_PROVIDER="mineru") == ["ETL_MINERU_URL: is not set, and ETL_OCR_PROVIDER is mineru"]
    assert read(ETL_OCR_PROVIDER="mineru", ETL_MINERU_URL="http://mineru:8000")


@pytest.mark.parametrize("name", ["ETL_ARQ_QUEUE_NAME", "ETL_QUEUE_NAME"])
def test_it_accepts_both_names_of_the_queue_setting(read: Read, name: str) -> None:
    """B11."""
    assert read(**{name: "papers"}).etl_arq_queue_name == "papers"


def test_an_empty_folder_is_not_the_working_directory(read: Read) -> None:
    """B11: old documents are deleted from ETL_CACHE_DIR."""
    assert read(ETL_CACHE_DIR="").etl_cache_dir == read().etl_cache_dir == Path(".mineru_cache")
    assert read(ETL_RULES_DIR="").etl_rules_dir == read().etl_rules_dir == Path(".etl_rules")
    assert read(ETL_CACHE_DIR="/var/cache/sluice").etl_cache_dir == Path("/var/cache/sluice")


# These must not be empty, because an empty address of object storage would mean AWS.
NOT_EMPTY = {"s3_endpoint_url", "s3_public_endpoint_url"}
OPTIONAL = sorted(
    name.upper() for name, field in Environment.model_fields.items() if field.default is None and name not in NOT_EMPTY
)


@pytest.mark.parametrize("name", OPTIONAL)
def test_optional_variables_may_be_empty(read: Read, name: str) -> None:
    """Compose passes an empty value for variables that the operator does not set."""
    assert getattr(read(**{name: ""}), name.lower()) is None


def test_run_state_uses_the_main_redis_by_default(read: Read) -> None:
    """B11."""
    assert read().run_state_url == REQUIRED["REDIS_URL"]
    assert read(ETL_REDIS_URL="redis://other/3").run_state_url == "redis://other/3"


def test_it_reports_inconsistent_variables_together_with_invalid_ones(read: Read) -> None:
    found = problems(
        read,
        DEBUG="hunter2",
        ALLOWED_HOSTS="",  # not reported, because whether it is required depends on DEBUG, which is invalid
        DATABASE_URL="hunter2",
        REDIS_URL="unix:///run/valkey.sock",
        S3_DOWNLOAD_ACCESS_KEY_ID="hunter2",
        EXPORT_BACKOFF_BASE_SECONDS="61",
        EXPORT_LEASE_SECS="hunter2",
    )

    assert [line.partition(":")[0] for line in found] == [
        "DEBUG",
        "DATABASE_URL",
        "CELERY_BROKER_URL",
        "S3_DOWNLOAD_SECRET_ACCESS_KEY",
        "EXPORT_BACKOFF_MAX_SECONDS",
        "EXPORT_LEASE_SECS",
    ]


@pytest.mark.parametrize(
    "good",
    [
        {"DATABASE_URL": "postgresql:///sluice"},
        {"DATABASE_URL": "host=one,two port=5432,5433 dbname=sluice"},
        {"DATABASE_URL": "postgresql://one:5432,two/sluice?connect_timeout=1"},
        {"SOURCE_DATABASE_URL": "", "CELERY_BROKER_URL": "", "S3_DOWNLOAD_SECRET_ACCESS_KEY": ""},
        {"REDIS_URL": "rediss://valkey"},
        {"REDIS_URL": "unix:///run/valkey.sock", "CELERY_BROKER_URL": "amqp://u:p@rabbit//"},
        {"CELERY_BROKER_URL": "amqp://one:5672;amqp://two:5672"},
        {"REDIS_URL": "redis://one?socket_timeout=9", "CELERY_BROKER_URL": "amqps://two//?ssl_cert_reqs=none"},
        {"REDIS_URL": f"rediss://u:p@one/0?ssl_cert_reqs=required&ssl_ca_certs={__file__}"},
        {"S3_DOWNLOAD_ACCESS_KEY_ID": "id", "S3_DOWNLOAD_SECRET_ACCESS_KEY": "secret"},
        {"ALLOWED_HOSTS": "", "DEBUG": "true"},
        {"ETL_REDIS_URL": "", "ETL_GLOBAL_RULE_ID": "", "ETL_LLM_BASE_URL": "", "ETL_LLM_MAX_TOKENS": ""},
        {"ETL_OCR_PROVIDER": "somebody.elses.Provider", "ETL_MINERU_RESULT_HOSTS": "a.example, b.example"},
    ],
)
def test_it_accepts_valid_settings(read: Read, good: dict[str, str]) -> None:
    assert read(**good)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("EXPORT_LEASE_SECOND", "EXPORT_LEASE_SECONDS"),
        ("EXPORT_SLOTS", "EXPORT_DB_SLOTS"),
        ("EXPORT_LINK_TTL", "EXPORT_LINK_TTL_SECONDS"),
        ("EXPORT_RATES", "EXPORT_RATE"),
        ("EXPORT_MAX_CHUNKS_JOB", "EXPORT_MAX_CHUNKS_PER_JOB"),
        ("ETL_LLM_URL", "ETL_LLM_BASE_URL"),
    ],
)
def test_it_refuses_misspelled_variables(read: Read, written: str, meant: str) -> None:
    assert problems(read, **{written: SECRET}) == [f"{written}: is not a setting; did you mean {meant}?"]


@pytest.mark.parametrize("name", ["EXPORT_SOMETHING_ELSE", "EXPORT_HOME", "S3_BUCKETS"])
def test_it_ignores_unrelated_variables(read: Read, name: str) -> None:
    plain = read()
    assert read(**{name: "5"}) == plain


def test_names_of_variables_may_be_in_lower_case(read: Read) -> None:
    assert read(export_db_slots="5").export_db_slots == 5


@pytest.mark.slow
def test_a_command_prints_all_problems_and_no_traceback() -> None:
    changes = {"DATABASE_URL": SECRET, "REDIS_URL": f"http://{SECRET}", "EXPORT_DB_SLOT": SECRET}

    done = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=PROJECT, env={**os.environ, **changes}, check=False, capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "These settings are missing or invalid:",
        f"  DATABASE_URL: {NO_POSTGRES_URL}",
        f"  REDIS_URL: {NO_REDIS}",
        "  EXPORT_DB_SLOT: is not a setting; did you mean EXPORT_DB_SLOTS?",
    ]


@pytest.mark.parametrize("value", ["60", "0/min", "-1/min", "60/fortnight", "1e3/min", "60/min; 3/day", SECRET])
def test_it_refuses_invalid_rates(read: Read, value: str) -> None:
    message = "is not a rate such as 60/min (units: s, sec, second, min, minute, h, hour, day)"

    assert problems(read, EXPORT_RATE=value) == [f"EXPORT_RATE: {message}"]


def test_it_accepts_rates_with_spaces_and_named_bindings(read: Read) -> None:
    settings = read(EXPORT_RATE=" 5 / min", EXPORT_BIND_IP="off", EXPORT_BIND_UA="off")

    assert (settings.export_rate, settings.export_bind_ip, settings.export_bind_ua) == ("5/min", "off", False)


OIDC = {"OIDC_ISSUER": "https://sso.example.org/realm", "OIDC_CLIENT_ID": "sluice", "OIDC_CLIENT_SECRET": SECRET}


@pytest.mark.parametrize("missing", list(OIDC))
def test_it_refuses_incomplete_settings_of_single_sign_on(read: Read, missing: str) -> None:
    """C10."""
    given = {name: value for name, value in OIDC.items() if name != missing}
    message = "must be set together with OIDC_ISSUER and OIDC_CLIENT_ID: set all three or none"

    assert problems(read, **given) == [f"OIDC_CLIENT_SECRET: {message}"]


def test_it_refuses_an_issuer_that_is_not_a_url(read: Read) -> None:
    """C10."""
    assert problems(read, **OIDC | {"OIDC_ISSUER": "sso.example.org"}) == [
        "OIDC_ISSUER: is not a URL such as https://sso.example.org"
    ]
    assert read(**OIDC, OIDC_STAFF_GROUPS="ops, sre").oidc_staff_groups == ["ops", "sre"]


# ---- Secrets in files -------------------------------------------------------------------------------------------
SECRETS = {
    "SECRET_KEY": KEY,
    "SECRET_KEY_FALLBACKS": "one-old-key,another",
    "SENTRY_DSN": "https://filed@errors.example/1",
    "OIDC_CLIENT_SECRET": "filed-oidc",
    "DATABASE_URL": "postgresql://sluice:filed@db:5432/sluice",
    "SOURCE_DATABASE_URL": "postgresql://reader:filed@replica/sluice",
    "REDIS_URL": "redis://:filed@valkey:6379/0",
    "CELERY_BROKER_URL": "amqp://sluice:filed@rabbitmq//",
    "S3_ACCESS_KEY_ID": "filed-id",
    "S3_SECRET_ACCESS_KEY": "filed-secret",
    "S3_DOWNLOAD_ACCESS_KEY_ID": "filed-download-id",
    "S3_DOWNLOAD_SECRET_ACCESS_KEY": "filed-download-secret",
    "ETL_REDIS_URL": "redis://:filed@valkey:6379/1",
    "ETL_MINERU_API_KEY": "filed-mineru",
    "ETL_LLM_API_KEY": "filed-llm",
}


def secret_text(value: Any) -> str:
    return ",".join(map(secret_text, value)) if isinstance(value, list) else str(value.get_secret_value())


def test_exactly_the_secrets_can_be_in_files(read: Read, tmp_path: Path) -> None:
    assert {"SECRET_KEY", "DATABASE_URL"} < set(Environment.secrets())
    assert all(("SecretStr" in str(field)) == (name.upper() in Environment.secrets())
               for name, field in Environment.__annotations__.items() if not name.startswith("_"))  # fmt: skip
    secrets = {name: SECRETS.get(name, "filed") for name in Environment.secrets()}
    for name, value in secrets.items():
        (tmp_path / name).write_text(f"{value}\n")

    settings = read(
        OIDC_ISSUER="https://sso.example.org",
        OIDC_CLIENT_ID="sluice",
        **dict.fromkeys(REQUIRED.keys() & secrets),
        **{f"{name}_FILE": str(tmp_path / name) for name in secrets},
    )

    assert {name: secret_text(getattr(settings, name.lower())) for name in secrets} == secrets


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_the_final_newline_is_not_part_of_the_secret(read: Read, tmp_path: Path, end: str) -> None:
    file = tmp_path / "key"
    file.write_bytes(f" {KEY} {end}".encode())

    assert read(SECRET_KEY=None, SECRET_KEY_FILE=str(file)).secret_key.get_secret_value() == f" {KEY} "


@pytest.mark.parametrize("between", [",", "\n", "\r\n", ",\n"])
def test_a_file_may_have_one_key_per_line(read: Read, tmp_path: Path, between: str) -> None:
    """If the file were read as a single key, signatures with the old keys would be invalid without an error."""
    file = tmp_path / "keys"
    file.write_text(f"one-old-key{between}another\n", newline="")

    found = read(SECRET_KEY_FALLBACKS_FILE=str(file)).secret_key_fallbacks

    assert [key.get_secret_value() for key in found] == ["one-old-key", "another"]


def test_a_secret_that_is_set_twice_is_refused(read: Read, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{SECRET * 8}\n")

    assert problems(read, SECRET_KEY_FILE=str(file)) == [
        "SECRET_KEY_FILE: is set together with SECRET_KEY: set only one"
    ]
    assert read(SECRET_KEY="", SECRET_KEY_FILE=str(file)).secret_key.get_secret_value() == SECRET * 8
    assert read(SECRET_KEY_FILE="").secret_key.get_secret_value() == KEY


def test_all_unusable_files_are_reported_without_their_content(read: Read, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"hunter2\xff")
    (tmp_path / "bad").write_text("http://hunter2\n")

    assert problems(
        read,
        SECRET_KEY=None,
        SECRET_KEY_FILE=str(tmp_path / "absent"),
        DATABASE_URL=None,
        DATABASE_URL_FILE=str(tmp_path),
        REDIS_URL=None,
        REDIS_URL_FILE=str(tmp_path / "bad"),
        S3_ACCESS_KEY_ID=None,
        S3_ACCESS_KEY_ID_FILE=str(tmp_path / "binary"),
        S3_DOWNLOAD_ACCESS_KEY_ID_FILE=str(tmp_path / "empty"),
        S3_DOWNLOAD_SECRET_ACCESS_KEY=SECRET,
        ETL_LLM_API_KEY_FILES=str(tmp_path / "bad"),
    ) == [
        f"REDIS_URL: {NO_REDIS}",
        "SECRET_KEY_FILE: names a file that cannot be read: No such file or directory",
        "DATABASE_URL_FILE: names a file that cannot be read: Is a directory",
        "S3_ACCESS_KEY_ID_FILE: names a file that is not text",
        "S3_DOWNLOAD_ACCESS_KEY_ID_FILE: names a file that is empty",
        "ETL_LLM_API_KEY_FILES: is not a setting; did you mean ETL_LLM_API_KEY_FILE?",
    ]


def test_a_secret_in_place_of_a_path_is_not_shown(read: Read) -> None:
    assert problems(read, SECRET_KEY=None, SECRET_KEY_FILE=SECRET) == [
        "SECRET_KEY_FILE: names a file that cannot be read: No such file or directory"
    ]
