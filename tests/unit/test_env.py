"""The settings: everything that is wrong is told at once, once, and without the values."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from config import env
from config.env import Environment

PROJECT = Path(__file__).parents[2]
SECRET = "hunter2"  # in every bad value that a message could quote
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
# As the contract has them.
DEFAULTS = {
    "EXPORT_LINK_TTL_SECONDS": 600,
    "EXPORT_PRESIGN_SECONDS": 60,
    "EXPORT_JOB_RETENTION_DAYS": 7,
    "EXPORT_DB_SLOTS": 8,
    "EXPORT_LEASE_SECONDS": 60,
    "EXPORT_REAPER_SECONDS": 15,
    "EXPORT_MAX_ATTEMPTS": 4,
    "EXPORT_BACKOFF_BASE_SECONDS": 2,
    "EXPORT_BACKOFF_MAX_SECONDS": 60,
    "EXPORT_MAX_CHUNKS_PER_JOB": 10000,
    "EXPORT_DAILY_JOBS": 1000,
    "EXPORT_DAILY_CHUNKS": 100000,
    "SIGN_IN_RATE": "10/min",
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
    "ETL_POSTPROCESS_CHUNK_SIZE_CHARS": 8_000,
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
NO_REDIS = "does not begin with redis, rediss, unix and ://"
NO_BROKER = "does not begin with redis, rediss, sentinel, amqp, amqps, pyamqp and ://"
NO_URL = "is not a URL with a host and a port"
NO_PAIR = "goes together with S3_DOWNLOAD_ACCESS_KEY_ID: set both or neither"
NO_NETWORK = "is not a network such as 10.0.0.0/8"

Read = Callable[..., Environment]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Read the settings from an environment of what is required and these; the cached ones of the tests stay."""

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
    assert first == "These settings are missing or bad:"
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
def test_it_names_everything_that_is_missing_at_once(read: Read, value: str | None) -> None:
    found = problems(read, **dict.fromkeys(REQUIRED, value))

    assert [line.partition(":")[0] for line in found] == list(REQUIRED)
    assert found[:2] == ["SECRET_KEY: is not set", "ALLOWED_HOSTS: is not set, which only DEBUG=true allows"]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("SECRET_KEY", "hunter2", "is shorter than 32 characters"),
        ("DATABASE_URL", "hunter2", NO_POSTGRES_URL),
        ("DATABASE_URL", "http://u:hunter2@db/sluice", NO_POSTGRES_URL),
        ("DATABASE_URL", "postgresql://u:hunter2@db/sluice?hunter2=1", NO_POSTGRES_URL),
        ("DATABASE_URL", "postgresql://u:hunter2%ff@db/sluice", NO_POSTGRES_URL),
        ("DATABASE_URL", "postgresql://u:hunter2@db:5432", "names no database"),
        ("DATABASE_URL", "host=db password=hunter2", "names no database"),
        ("DATABASE_URL", "postgresql://u:hunter2@db:hunter2/sluice", NO_PORT),
        ("DATABASE_URL", "postgresql://u:hunter2@one:5432,two:65536/sluice", NO_PORT),
        ("SOURCE_DATABASE_URL", "postgresql://u:hunter2@db:0/sluice", NO_PORT),
        ("REDIS_URL", "hunter2", NO_REDIS),
        ("REDIS_URL", "http://hunter2", NO_REDIS),
        ("REDIS_URL", "redis://:hunter2@valkey:hunter2/0", NO_URL),
        ("REDIS_URL", "redis://:hunter2@valkey:65536/0", NO_URL),
        ("REDIS_URL", "redis://:hunter2@[::1/0", NO_URL),
        ("REDIS_URL", "redis://hunter2\u2100/0", NO_URL),  # urlsplit quotes the host that it refuses
        ("REDIS_URL", "redis://:hunter2@/0", "names no host"),
        ("REDIS_URL", "unix://", "names no host"),
        ("CELERY_BROKER_URL", "http://hunter2", NO_BROKER),
        ("CELERY_BROKER_URL", "unix:///hunter2", NO_BROKER),
        ("CELERY_BROKER_URL", "sentinel://one:26379;sentinel://:hunter2@two:hunter2", NO_URL),
        ("S3_PUBLIC_ENDPOINT_URL", "hunter2", "Input should be a valid URL, relative URL without a base"),
        ("S3_DOWNLOAD_SECRET_ACCESS_KEY", "hunter2", NO_PAIR),
        ("TRUSTED_PROXY_CIDRS", "hunter2", f"'item 1' {NO_NETWORK}"),
        ("METRICS_ALLOW_CIDRS", "::1, 10.0.0.1/8", f"'item 2' {NO_NETWORK}"),
        ("LOG_LEVEL", "hunter2", "Input should be 'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
        ("EXPORT_DB_SLOTS", "hunter2", "Input should be a valid integer, unable to parse string as an integer"),
        ("EXPORT_PRESIGN_SECONDS", "61", "Input should be less than or equal to 60"),
        ("EXPORT_BACKOFF_MAX_SECONDS", "1.5", "is less than EXPORT_BACKOFF_BASE_SECONDS"),
        ("EXPORT_BACKOFF_MAX_SECONDS", "inf", "Input should be a finite number"),
        ("ETL_RETRY_BACKOFF_MAX_SECONDS", "1.5", "is less than ETL_RETRY_BACKOFF_BASE_SECONDS"),
        ("ETL_STATE_TERMINAL_TTL_SECONDS", "86401", "is more than ETL_STATE_TTL_SECONDS"),
        ("ETL_ARQ_QUEUE_NAME", "hunter2 queue", "is not a name of letters, digits, dots and dashes"),
        ("ETL_OCR_PROVIDER", "hunter2", "is not local, mineru, or a dotted path"),
        ("ETL_MINERU_TIER", "hunter2!", "is not a word such as basic"),
        ("ETL_REDIS_URL", "http://hunter2", NO_REDIS),
    ],
)  # fmt: skip
def test_it_names_a_bad_value_once_and_does_not_show_it(read: Read, name: str, value: str, reason: str) -> None:
    assert problems(read, **{name: value}) == [f"{name}: {reason}"]


def test_it_wants_an_address_for_mineru(read: Read) -> None:
    assert problems(read, ETL_OCR_PROVIDER="mineru") == ["ETL_MINERU_URL: is not set, and ETL_OCR_PROVIDER is mineru"]
    assert read(ETL_OCR_PROVIDER="mineru", ETL_MINERU_URL="http://mineru:8000")


@pytest.mark.parametrize("name", ["ETL_ARQ_QUEUE_NAME", "ETL_QUEUE_NAME"])
def test_it_takes_the_queue_by_both_of_its_names(read: Read, name: str) -> None:
    """B11."""
    assert read(**{name: "papers"}).etl_arq_queue_name == "papers"


def test_an_empty_folder_is_not_the_working_directory(read: Read) -> None:
    """B11: old documents are deleted from ETL_CACHE_DIR."""
    assert read(ETL_CACHE_DIR="").etl_cache_dir == read().etl_cache_dir == Path(".mineru_cache")
    assert read(ETL_RULES_DIR="").etl_rules_dir == read().etl_rules_dir == Path(".etl_rules")
    assert read(ETL_CACHE_DIR="/var/cache/sluice").etl_cache_dir == Path("/var/cache/sluice")


def test_run_state_lives_where_redis_is_unless_told_otherwise(read: Read) -> None:
    """B11."""
    assert read().run_state_url == REQUIRED["REDIS_URL"]
    assert read(ETL_REDIS_URL="redis://other/3").run_state_url == "redis://other/3"


def test_it_names_a_variable_that_does_not_fit_another_beside_those_that_are_bad(read: Read) -> None:
    found = problems(
        read,
        DEBUG="hunter2",
        ALLOWED_HOSTS="",  # nobody knows whether it is needed
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
        {"CELERY_BROKER_URL": "sentinel://one:26379;sentinel://two:26379"},
        {"S3_DOWNLOAD_ACCESS_KEY_ID": "id", "S3_DOWNLOAD_SECRET_ACCESS_KEY": "secret"},
        {"ALLOWED_HOSTS": "", "DEBUG": "true"},
        {"ETL_REDIS_URL": "", "ETL_GLOBAL_RULE_ID": "", "ETL_LLM_BASE_URL": "", "ETL_LLM_MAX_TOKENS": ""},
        {"ETL_OCR_PROVIDER": "somebody.elses.Provider", "ETL_MINERU_RESULT_HOSTS": "a.example, b.example"},
    ],
)
def test_it_takes_what_the_servers_take(read: Read, good: dict[str, str]) -> None:
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
def test_it_refuses_a_name_that_is_nearly_one_of_ours(read: Read, written: str, meant: str) -> None:
    assert problems(read, **{written: SECRET}) == [f"{written}: is not a setting; did you mean {meant}?"]


@pytest.mark.parametrize("name", ["EXPORT_SOMETHING_ELSE", "EXPORT_HOME", "S3_BUCKETS", "export_db_slots"])
def test_it_leaves_other_names_alone(read: Read, name: str) -> None:
    assert read(**{name: "5"})


def test_a_command_prints_all_problems_and_no_traceback() -> None:
    changes = {"DATABASE_URL": SECRET, "REDIS_URL": f"http://{SECRET}", "EXPORT_DB_SLOT": SECRET}

    done = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=PROJECT, env={**os.environ, **changes}, check=False, capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "These settings are missing or bad:",
        f"  DATABASE_URL: {NO_POSTGRES_URL}",
        f"  REDIS_URL: {NO_REDIS}",
        "  EXPORT_DB_SLOT: is not a setting; did you mean EXPORT_DB_SLOTS?",
    ]


@pytest.mark.parametrize("value", ["60", "0/min", "-1/min", "60/fortnight", "1e3/min", "60/min; 3/day", SECRET])
def test_it_refuses_what_is_no_rate(read: Read, value: str) -> None:
    told = "is not a rate such as 60/min (units: s, sec, second, min, minute, h, hour, day)"

    assert problems(read, EXPORT_RATE=value) == [f"EXPORT_RATE: {told}"]


def test_it_takes_rates_with_spaces_and_bindings_in_their_words(read: Read) -> None:
    settings = read(EXPORT_RATE=" 5 / min", EXPORT_BIND_IP="off", EXPORT_BIND_UA="off")

    assert (settings.export_rate, settings.export_bind_ip, settings.export_bind_ua) == ("5/min", "off", False)
