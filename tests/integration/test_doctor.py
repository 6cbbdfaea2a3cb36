"""`manage.py doctor` with wrong rows and settings. `tests/operations/test_doctor.py` tests misconfigured servers."""

import errno
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from io import StringIO
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import LazySettings
from django.core.checks import CheckMessage
from django.core.management import call_command
from django.utils import timezone
from pydantic import AnyHttpUrl, SecretStr
from pytest_httpserver import HTTPServer

from config.ops.checks import deployment, folders
from config.ops.doctor import database, examination, peers, redis, source, storage, system_checks, workers
from config.ops.doctor.findings import Subject, ok
from config.platform import startup
from config.platform import storage as objects
from config.platform.http import health
from config.platform.storage import writability
from etl.postprocessors import server_features
from etl.postprocessors.server_features import JsonMode, ServerFeatures
from etl.providers.local import sandbox, system_calls
from exports.models import Dataset, Slot, Tick
from tests.conftest import change_settings
from tests.integration import faulty_s3, old_postgres
from tests.integration.faulty_s3 import Handler


@pytest.fixture(autouse=True)
def _long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeouts of checks: a machine that stalls for seconds must not look like a server outage."""
    monkeypatch.setattr(health, "CONNECT_SECONDS", 30)
    for module in (database, source):
        monkeypatch.setattr(module, "STATEMENT_SECONDS", 30)


@pytest.fixture
def change(settings: LazySettings) -> Callable[..., None]:
    return partial(change_settings, settings)


def examine(subject: Subject[Any], check: str) -> tuple[str, str]:
    """Run one check. Return the worst level and the text of all findings."""
    (function,) = [each for each in subject.checks if each.__name__ == f"check_{check}"]
    results = examination.examine([replace(subject, checks=(function,))])
    assert results, "the check returned no finding"
    text = " ".join(f"{result.finding.state} {result.finding.remedy}" for result in results)
    return examination.worst(results).value, text


def system_check(check: Callable[[], list[CheckMessage]]) -> tuple[str, str]:
    """Run one system check as the doctor reports it. Return the level and the text."""
    (finding,) = system_checks.findings(check()) or [ok("")]
    return finding.level.value, f"{finding.state} {finding.remedy}"


def name_of(check: Callable[..., Any]) -> str:
    return check.__name__.removeprefix("check_")


def passes(subject: Subject[Any], check: str) -> bool:
    return examine(subject, check)[0] == "ok"


# ---- All checks -----------------------------------------------------------------------------------------------------
def run(*options: str) -> tuple[int, str]:
    printed = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("doctor", *options, stdout=printed)
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed.getvalue()


@pytest.mark.slow
@pytest.mark.usefixtures("dataset")
def test_it_runs_every_check_and_cleans_up() -> None:
    """C6."""
    status, printed = run("--json")
    document = json.loads(printed)
    assert (status, document["status"]) == (2, "failure")  # no worker consumes the queues here
    failures = {line["check"] for line in document["findings"] if line["level"] == "failure"}
    assert failures == {"workers.queues", "database.ticks"}
    assert all(line["do"] for line in document["findings"] if line["level"] != "ok")
    subjects = (system_checks, database, source, storage, workers, peers)
    every = {f"{each.SUBJECT.name}.{name_of(check)}" for each in subjects for check in each.SUBJECT.checks}
    every |= {f"broker.{name_of(check)}" for check in redis.CHECKS}
    every -= {"source.conflicts"}  # this check is only for replicas
    assert {line["check"] for line in document["findings"]} == every
    assert not list(objects.list_objects(writability.PREFIX))
    assert not list(objects.list_uploads(writability.PREFIX))


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_it_prints_no_secret(settings: LazySettings, change: Callable[..., None]) -> None:
    change(
        secret_key_fallbacks=[SecretStr("short-and-secret")],
        etl_llm_base_url=AnyHttpUrl("http://127.0.0.1:1/v1"),
        etl_llm_api_key=SecretStr("key-of-the-model"),
    )
    status, printed = run()
    assert status == 2
    assert "Remove it from SECRET_KEY_FALLBACKS." in printed
    env = settings.SLUICE
    values = [value for _, value in env if isinstance(value, SecretStr)] + env.secret_key_fallbacks
    secrets = {value.get_secret_value() for value in values}
    assert len(secrets) >= 7
    assert not [secret for secret in secrets if secret in printed]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_unreachable_servers_are_reported_and_the_others_checked(change: Callable[..., None]) -> None:
    unreachable = SecretStr("redis://:password@127.0.0.1:1/0")
    change(
        source_database_url=SecretStr("postgresql://somebody:password@127.0.0.1:1/source"),
        redis_url=unreachable,
        celery_broker_url=None,
        s3_endpoint_url=AnyHttpUrl("http://127.0.0.1:1"),
    )
    status, printed = run("--json", "--web", "http://127.0.0.1:1")
    findings = {line["check"]: line for line in json.loads(printed)["findings"]}
    for check in ("source.reachable", "broker.reachable", "storage.reachable", "web.readiness"):
        assert findings[check]["level"] == "failure"
        assert findings[check]["state"] == f"It {health.SILENT}.", check
    assert "docs/runbook.md#redis-is-lost" in findings["broker.reachable"]["do"]
    assert "docs/runbook.md#object-storage-is-unreachable" in findings["storage.reachable"]["do"]
    assert findings["database.version"]["level"] == "ok"
    assert status == 2


# ---- Settings -------------------------------------------------------------------------------------------------------
KEY = SecretStr("0123456789" * 4)


@pytest.mark.parametrize(
    ("check", "changes", "level", "words"),
    [
        (
            deployment.check_secret_key,
            {"secret_key": KEY, "secret_key_fallbacks": [KEY]},
            "warning",
            "no key was rotated",
        ),
        (
            deployment.check_proxies,
            {"trusted_proxy_cidrs": [ip_network("0.0.0.0/0")]},
            "failure",
            "such as 10.0.0.0/24",
        ),
        (deployment.check_proxies, {"trusted_proxy_cidrs": []}, "warning", "such as 10.0.0.0/24"),
        (
            deployment.check_metrics,
            {"metrics_allow_cidrs": [ip_network("::/0")]},
            "warning",
            "the network of Prometheus",
        ),
        (
            deployment.check_transport,
            {"s3_public_endpoint_url": AnyHttpUrl("http://s3.example")},
            "warning",
            "proxy with TLS",
        ),
    ],
)
def test_it_finds_unsafe_settings(
    change: Callable[..., None],
    check: Callable[[], list[CheckMessage]],
    changes: dict[str, Any],
    level: str,
    words: str,
) -> None:
    change(**changes)
    actual, text = system_check(check)
    assert actual == level
    assert words in text


def test_it_includes_djangos_deployment_checks(settings: LazySettings) -> None:
    settings.DEBUG = True
    level, text = examine(system_checks.SUBJECT, "system")
    assert level == "warning"
    assert "security.W018" in text


def test_it_includes_the_checks_of_the_apps(change: Callable[..., None]) -> None:
    change(etl_ocr_provider="no.such.Provider")
    level, text = examine(system_checks.SUBJECT, "system")
    assert level == "failure"
    assert "ETL_OCR_PROVIDER" in text


# ---- Rows -----------------------------------------------------------------------------------------------------------
def test_it_finds_missing_slots(slots: int) -> None:
    assert passes(database.SUBJECT, "slots")
    Slot.objects.filter(number=slots).delete()
    level, text = examine(database.SUBJECT, "slots")
    assert level == "failure"
    assert f"{slots - 1} of the {slots} slots" in text
    assert "The periodic task `reap` creates them" in text


@pytest.mark.usefixtures("slots")
def test_it_finds_slots_that_are_not_released() -> None:
    assert passes(database.SUBJECT, "held_slots")
    Slot.objects.filter(number=1).update(token=1, lease_until=timezone.now() - timedelta(minutes=10))
    level, text = examine(database.SUBJECT, "held_slots")
    assert level == "failure"
    assert "docs/runbook.md#source-is-slow" in text


@pytest.mark.parametrize(("name", "level"), [("reap", "failure"), ("sweep", "warning"), ("purge", "warning")])
@pytest.mark.usefixtures("transactional_db")
def test_it_finds_stopped_periodic_tasks(name: str, level: str) -> None:
    Tick.objects.bulk_create([Tick(name=each, ran_at=timezone.now()) for each in ("reap", "sweep", "purge")])
    assert passes(database.SUBJECT, "ticks")
    Tick.objects.filter(name=name).update(ran_at=timezone.now() - timedelta(days=5))
    actual, text = examine(database.SUBJECT, "ticks")
    assert actual == level
    assert f"`{name}` last ran 5 d ago" in text
    assert "docs/runbook.md#nothing-runs" in text


@pytest.mark.usefixtures("transactional_db")
def test_it_finds_a_periodic_task_that_ran_in_the_future() -> None:
    Tick.objects.bulk_create([Tick(name=each, ran_at=timezone.now()) for each in ("reap", "sweep", "purge")])
    Tick.objects.filter(name="sweep").update(ran_at=timezone.now() + timedelta(days=2))
    level, text = examine(database.SUBJECT, "ticks")
    assert level == "failure"
    assert "in the future" in text


def test_it_finds_that_the_default_rule_is_missing(transactional_db: None, change: Callable[..., None]) -> None:
    assert passes(database.SUBJECT, "rules")
    change(etl_global_rule_id=4711)
    level, text = examine(database.SUBJECT, "rules")
    assert level == "warning"
    assert "rule 4711 does not exist" in text


# ---- Datasets -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("subject", "setting", "needed"),
    [(source.SUBJECT, "source_database_url", 14), (database.SUBJECT, "database_url", 15)],
    ids=["source", "database"],
)
@pytest.mark.django_db(transaction=True)
def test_it_finds_an_unsupported_version_of_postgres(
    settings: LazySettings, change: Callable[..., None], subject: Subject[Any], setting: str, needed: int
) -> None:
    env = settings.SLUICE
    url = env.source_url if setting == "source_database_url" else env.database_url.get_secret_value()
    with old_postgres.running(url) as server:
        change(**{setting: SecretStr(server.url)})
        level, text = examine(subject, "version")
    assert level == "failure"
    assert f"It runs Postgres 13; Sluice needs {needed} or newer" in text


def test_it_finds_missing_datasets(transactional_db: None) -> None:
    level, text = examine(source.SUBJECT, "datasets")
    assert level == "warning"
    assert "register_dataset" in text


def test_it_finds_missing_functions(dataset: Dataset, source_db: psycopg.Connection) -> None:
    source_db.execute("DROP FUNCTION data.rows_for")
    level, text = examine(source.SUBJECT, "datasets")
    assert level == "failure"
    assert "Dataset things: data.rows_for(text, date) does not exist." in text


def test_it_finds_functions_that_return_no_table(dataset: Dataset, source_db: psycopg.Connection) -> None:
    source_db.execute("CREATE FUNCTION data.one(key text, day date) RETURNS int LANGUAGE sql AS 'SELECT 1'")
    Dataset.objects.of_functions().update(function="data.one")
    level, text = examine(source.SUBJECT, "datasets")
    assert level == "failure"
    assert "returns one value" in text


def test_it_quotes_names_of_functions(dataset: Dataset, source_db: psycopg.Connection) -> None:
    source_db.execute('ALTER FUNCTION data.rows_for RENAME TO "Rows; for"')
    Dataset.objects.of_functions().update(function="data.Rows; for")
    text = examine(source.SUBJECT, "datasets")[1]
    assert "does not exist" not in text
    assert "The functions of 1 of 1 datasets can be called." in text  # with a warning, because the role owns it


def test_it_finds_a_role_that_owns_its_functions(dataset: Dataset) -> None:
    level, text = examine(source.SUBJECT, "datasets")
    assert level == "warning"
    assert "the role owns data.rows_for" in text


def test_it_finds_volatile_functions_that_may_not_write(dataset: Dataset, source_db: psycopg.Connection) -> None:
    """A34: their calls may fail after an upgrade."""
    finding = "Dataset things: data.rows_for is VOLATILE, but its calls are read-only: they fail if it writes."
    assert finding not in examine(source.SUBJECT, "datasets")[1]
    source_db.execute("ALTER FUNCTION data.rows_for(text, date) VOLATILE")
    level, text = examine(source.SUBJECT, "datasets")
    assert level == "warning"
    assert finding in text
    Dataset.objects.update(allow_writes=True)
    assert finding not in examine(source.SUBJECT, "datasets")[1]


def test_it_does_not_check_the_servers_of_other_providers(change: Callable[..., None]) -> None:
    change(etl_ocr_provider="example.Provider")
    assert "are not checked" in examine(peers.SUBJECT, "ocr")[1]
    change(etl_ocr_provider="local")
    assert "without another server" in examine(peers.SUBJECT, "ocr")[1]


def test_it_finds_calls_that_outlast_their_task(dataset: Dataset) -> None:
    Dataset.objects.of_functions().update(statement_timeout=600)
    level, text = examine(source.SUBJECT, "datasets")
    assert level == "failure"
    assert "--statement-timeout" in text


def test_it_finds_datasets_in_the_folder_of_documents(dataset: Dataset) -> None:
    Dataset.objects.of_functions().update(base_path="etl/uploads")
    level, text = examine(source.SUBJECT, "datasets")
    assert level == "failure"
    assert "Dataset things: its base path, etl/uploads, is reserved for documents." in text


# ---- Redis ----------------------------------------------------------------------------------------------------------
def broker(check: str) -> tuple[str, str]:
    return examine(redis.subjects()[0], check)


@pytest.mark.django_db(transaction=True)
def test_it_checks_a_separate_redis_for_run_states(change: Callable[..., None]) -> None:
    assert [subject.name for subject in redis.subjects()] == ["broker"]
    change(etl_redis_url=SecretStr("redis://127.0.0.1:1/0"))
    assert [subject.name for subject in redis.subjects()] == ["broker", "run_state"]
    level, text = examine(redis.subjects()[1], "version")
    assert level == "failure"
    assert "ETL_REDIS_URL" in text


@pytest.mark.slow
def test_it_checks_that_rabbitmq_responds(change: Callable[..., None]) -> None:
    change(celery_broker_url=SecretStr("amqp://somebody:password@127.0.0.1:1//"))
    level, text = broker("response")
    assert level == "failure"
    assert "CELERY_BROKER_URL" in text


# ---- Object storage -------------------------------------------------------------------------------------------------
def test_it_finds_a_download_key_that_can_write(change: Callable[..., None], settings: LazySettings) -> None:
    assert passes(storage.SUBJECT, "download_key")
    env = settings.SLUICE
    change(
        s3_download_access_key_id=env.s3_access_key_id,
        s3_download_secret_access_key=env.s3_secret_access_key,
    )
    level, text = examine(storage.SUBJECT, "download_key")
    assert level == "failure"
    assert "list and write and delete" in text
    assert "docs/iam/download.json" in text


def test_it_finds_a_missing_download_key(change: Callable[..., None]) -> None:
    change(s3_download_access_key_id=None, s3_download_secret_access_key=None)
    level, text = examine(storage.SUBJECT, "download_key")
    assert level == "warning"
    assert "docs/iam/download.json" in text


def test_it_finds_a_lifecycle_rule_that_deletes_deliveries_too_early(change: Callable[..., None]) -> None:
    assert passes(storage.SUBJECT, "lifecycle")
    change(export_delivery_ttl_max_seconds=8 * 86_400)
    level, text = examine(storage.SUBJECT, "lifecycle")
    assert level == "failure"
    assert "expire-deliveries" in text


def test_it_finds_secret_files_readable_by_the_document_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the system call is unknown, as for a kernel without Landlock."""
    monkeypatch.setattr(sandbox, "LANDLOCK_CREATE_RULESET", 100_000)
    assert deployment.check_sandbox() == []
    monkeypatch.setenv("SECRET_KEY_FILE", "/run/secrets/secret_key")
    level, text = system_check(deployment.check_sandbox)
    assert level == "warning"
    assert "Landlock" in text


def test_it_finds_a_system_without_the_required_sandbox(
    monkeypatch: pytest.MonkeyPatch, change: Callable[..., None]
) -> None:
    monkeypatch.setattr(system_calls, "library", lambda: None)
    assert deployment.check_required_sandbox() == []
    change(etl_require_sandbox=True)
    level, text = system_check(deployment.check_required_sandbox)
    assert level == "failure"
    assert "seccomp" in text


def test_it_finds_that_system_calls_of_the_document_parser_are_not_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deployment.check_system_calls() == []
    monkeypatch.setattr(system_calls, "library", lambda: None)
    level, text = system_check(deployment.check_system_calls)
    assert level == "warning"
    assert "libseccomp2" in text


def test_it_finds_a_missing_bucket(change: Callable[..., None]) -> None:
    change(s3_bucket="no-such-bucket")
    level, text = examine(storage.SUBJECT, "reading")
    assert level == "failure"
    assert "docs/runbook.md#object-storage-is-unreachable" in text


def ignore_conditions(handler: Handler, body: bytes) -> None:
    """Overwrite objects regardless of conditions."""
    status, headers, content = handler.forward(body)
    if status == 412:
        status, content = 200, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
        headers = [("ETag", '"x"')]
    handler.answer(status, headers, content)


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_it_finds_a_storage_that_ignores_conditional_writes(proxy: faulty_s3.Proxy, method: str) -> None:
    assert passes(storage.SUBJECT, "conditions")
    proxy.inject(method, writability.PREFIX, ignore_conditions, times=99)
    level, text = examine(storage.SUBJECT, "conditions")
    assert level == "failure"
    assert ("PUT with If-None-Match, PUT with If-Match" if method == "PUT" else "CompleteMultipart") in text


def test_it_finds_clock_skew_of_the_storage(proxy: faulty_s3.Proxy) -> None:
    assert passes(storage.SUBJECT, "clock")

    def with_old_date(handler: Handler, body: bytes) -> None:
        status, headers, content = handler.forward(body)
        headers = [(name, value) for name, value in headers if name != "Date"]
        handler.answer(status, [*headers, ("Date", "Mon, 02 Jan 2006 15:04:05 GMT")], content)

    proxy.inject("HEAD", "", with_old_date, times=99)
    level, text = examine(storage.SUBJECT, "clock")
    assert level == "failure"
    assert "NTP" in text


def test_it_finds_a_storage_without_encryption(proxy: faulty_s3.Proxy) -> None:
    assert passes(storage.SUBJECT, "encryption")

    def unencrypted(handler: Handler, body: bytes) -> None:
        status, headers, content = handler.forward(body)
        plain = [each for each in headers if each[0].lower() != "x-amz-server-side-encryption"]
        handler.answer(status, plain, content)

    proxy.inject("HEAD", writability.PREFIX, unencrypted, times=99)
    level, text = examine(storage.SUBJECT, "encryption")
    assert level == "warning"
    assert "SSE-S3" in text


def test_it_finds_a_storage_proxy_that_breaks_signatures(settings: LazySettings, change: Callable[..., None]) -> None:
    """The proxy changes the Host header, which is signed."""
    with faulty_s3.running(str(settings.SLUICE.s3_endpoint_url)) as proxy:
        change(s3_public_endpoint_url=AnyHttpUrl(proxy.url))
        assert passes(storage.SUBJECT, "presigned")

        def rename(handler: Handler, body: bytes) -> None:
            handler.headers.replace_header("Host", "seaweedfs:8333")
            handler.answer(*handler.forward(body))

        proxy.inject("GET", "X-Amz-Signature", rename, times=99)
        level, text = examine(storage.SUBJECT, "presigned")
    assert level == "failure"
    assert "Host header" in text


@pytest.mark.slow
def test_it_finds_an_unreachable_public_address(change: Callable[..., None]) -> None:
    change(s3_public_endpoint_url=AnyHttpUrl("http://127.0.0.1:1"))
    level, text = examine(storage.SUBJECT, "presigned")
    assert level == "warning"
    assert "where clients are" in text


# ---- Folders --------------------------------------------------------------------------------------------------------
# Only the workers that read documents need ETL_CACHE_DIR.
FOLDERS = [
    (folders.check_temporary_folder, "TMPDIR", "failure"),
    (folders.check_cache_folder, "ETL_CACHE_DIR", "warning"),
]


@pytest.fixture(params=FOLDERS)
def assert_found(
    request: pytest.FixtureRequest, change: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], None]:
    """A function that configures a folder which cannot be written to, and requires the finding about it."""

    def require_finding(folder: Path) -> None:
        check, name, level = request.param
        change(etl_cache_dir=folder)
        monkeypatch.setenv("TMPDIR", str(folder))
        actual, text = system_check(check)
        assert actual == level
        assert name in text
        assert "permissions" in text

    return require_finding


def test_it_finds_a_read_only_folder(assert_found: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_found(tmp_path / "file")


def test_it_finds_a_folder_inside_one_that_it_may_not_open(
    assert_found: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root can open every folder, so a replacement of `stat` refuses access instead of the system."""
    (tmp_path / "closed").touch()
    inside, stat = tmp_path / "closed" / "cache", os.stat

    def refuse(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if str(path) == str(inside):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", refuse)
    assert_found(inside)


def test_it_finds_a_temporary_folder_that_python_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would use another folder. Processes refuse to start instead."""
    assert startup.unusable_temporary_folder() == ""
    missing = tmp_path / "missing"
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(missing))
    level, text = system_check(folders.check_temporary_folder)
    assert level == "failure"
    assert str(missing) in text
    with pytest.raises(SystemExit, match="TMPDIR is"):
        startup.require_valid_settings()

    missing.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert system_check(folders.check_temporary_folder)[0] != "failure"
    startup.require_valid_settings()


@pytest.mark.parametrize(("check", "name", "level"), FOLDERS)
def test_it_finds_a_full_disk(change: Callable[..., None], check: Any, name: str, level: str) -> None:
    change(etl_max_file_bytes=10**18)
    actual, text = system_check(check)
    assert actual == level
    assert text.startswith(name)
    assert "docs/runbook.md#disk-is-full" in text


def test_it_finds_metrics_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folders.check_metrics_folder() == []
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR")
    level, text = system_check(folders.check_metrics_folder)
    assert level == "warning"
    assert "docs/runbook.md#metrics-are-missing" in text


# ---- Others ---------------------------------------------------------------------------------------------------------
def test_it_finds_a_model_that_refuses_the_key(change: Callable[..., None], httpserver: HTTPServer) -> None:
    httpserver.expect_request("/v1/models", headers={"Authorization": "Bearer good"}).respond_with_json({"data": []})
    httpserver.expect_request("/v1/models").respond_with_data("", status=401)
    change(etl_llm_base_url=AnyHttpUrl(httpserver.url_for("/v1")), etl_llm_api_key=SecretStr("good"))
    assert passes(peers.SUBJECT, "model")
    change(etl_llm_api_key=SecretStr("bad"))
    level, text = examine(peers.SUBJECT, "model")
    assert level == "failure"
    assert "Set ETL_LLM_API_KEY" in text


def test_it_reports_which_schemas_a_model_server_accepts(change: Callable[..., None], httpserver: HTTPServer) -> None:
    """B15: this is known from the documents that were processed."""
    httpserver.expect_request("/v1/models").respond_with_json({"data": []})
    url = AnyHttpUrl(httpserver.url_for("/v1"))
    change(etl_llm_base_url=url, etl_llm_model="one")
    assert "which JSON mode it supports" in examine(peers.SUBJECT, "model")[1]

    server_features.store(str(url), "one", ServerFeatures())
    assert "It enforces the schemas of rules" in examine(peers.SUBJECT, "model")[1]
    server_features.store(str(url), "one", ServerFeatures(json_mode=JsonMode.JSON_OBJECT))
    assert "json_object" in examine(peers.SUBJECT, "model")[1]


def test_it_finds_an_unreachable_model(change: Callable[..., None]) -> None:
    change(etl_llm_base_url=AnyHttpUrl("http://127.0.0.1:1/v1"))
    level, text = examine(peers.SUBJECT, "model")
    assert level == "failure"
    assert "docs/runbook.md#documents-are-stuck" in text


def test_it_finds_an_unreachable_collector(
    change: Callable[..., None], httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like real collectors, the server responds to GET with 404."""
    assert passes(peers.SUBJECT, "collector")
    change(tracing=True)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", httpserver.url_for(""))
    assert passes(peers.SUBJECT, "collector")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    level, text = examine(peers.SUBJECT, "collector")
    assert level == "warning"
    assert "docs/tracing.md" in text


@pytest.mark.parametrize("path", ["/v1/health", "/health"])
def test_it_finds_a_failing_mineru_server(change: Callable[..., None], httpserver: HTTPServer, path: str) -> None:
    """MinerU 4.0 has /v1/health; older servers only have /health."""
    change(etl_ocr_provider="mineru", etl_mineru_url=AnyHttpUrl(httpserver.url_for("")))
    for status, level in ((200, "ok"), (503, "failure"), (401, "failure")):
        httpserver.clear()
        httpserver.expect_request(path).respond_with_data("", status=status)
        httpserver.expect_request("/v1/health").respond_with_data("", status=404)
        actual, text = examine(peers.SUBJECT, "ocr")
        assert actual == level
        assert level == "ok" or str(status) in text


@pytest.mark.parametrize(
    ("network", "level", "words"),
    [("169.254.0.0/16", "failure", "its credentials"), ("127.0.0.0/8", "warning", "DATABASE_URL")],
)
def test_it_finds_too_broad_webhook_networks(change: Callable[..., None], network: str, level: str, words: str) -> None:
    change(export_webhook_allow_cidrs=[ip_network("192.0.2.0/24")])
    assert passes(peers.SUBJECT, "webhooks")
    change(export_webhook_allow_cidrs=[ip_network(network)])
    actual, text = examine(peers.SUBJECT, "webhooks")
    assert actual == level
    assert words in text


def test_it_finds_webhook_networks_that_include_a_broker(change: Callable[..., None]) -> None:
    change(
        celery_broker_url=SecretStr("amqp://sluice:password@192.0.2.7//;amqp://sluice:password@192.0.2.8//"),
        export_webhook_allow_cidrs=[ip_network("192.0.2.8/32")],
    )
    level, text = examine(peers.SUBJECT, "webhooks")
    assert level == "warning"
    assert "CELERY_BROKER_URL" in text


@pytest.mark.parametrize(("status", "words"), [(503, "curl …/readyz"), (400, "ALLOWED_HOSTS")])
def test_it_finds_a_web_process_that_is_not_ready(httpserver: HTTPServer, status: int, words: str) -> None:
    httpserver.expect_request("/readyz").respond_with_data("", status=status)
    level, text = examine(peers.web(httpserver.url_for("/")), "readiness")
    assert level == "failure"
    assert words in text


@pytest.mark.slow
def test_it_finds_more_processes_than_connections(transactional_db: None, change: Callable[..., None]) -> None:
    assert passes(workers.SUBJECT, "connections")
    change(database_pool_size=500)
    level, text = examine(workers.SUBJECT, "connections")
    assert level == "warning"
    assert "PgBouncer" in text
