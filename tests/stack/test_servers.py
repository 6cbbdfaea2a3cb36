import http.client
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import psycopg
import pytest
import redis
from botocore.config import Config
from botocore.exceptions import ClientError

from config.dev.stack import process_tree, servers
from config.dev.stack.postgres import Postgres
from config.dev.stack.servers import Servers
from tests.stack.conftest import is_served, listening, temporary_sockets
from tests.waiting import wait_until

LOOPBACK_HEX = "0100007F"


def test_servers_listen_on_the_loopback_address_only(stack_servers: Servers) -> None:
    for server in stack_servers.all:
        addresses = listening(process_tree.members(server.pid))
        assert len(addresses) >= server.port_count
        assert set(addresses) == {LOOPBACK_HEX}, server.name


def test_the_download_key_reads_objects_and_does_nothing_else(stack_servers: Servers) -> None:
    bucket, admin = stack_servers.seaweedfs.bucket, stack_servers.seaweedfs.client
    admin.put_object(Bucket=bucket, Key="_receipts/a.csv", Body=b"id\n1\n")
    download = boto3.client(
        "s3", endpoint_url=stack_servers.seaweedfs.url, region_name="us-east-1",
        aws_access_key_id=stack_servers.environment()["S3_DOWNLOAD_ACCESS_KEY_ID"],
        aws_secret_access_key=stack_servers.environment()["S3_DOWNLOAD_SECRET_ACCESS_KEY"],
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )  # fmt: skip
    url = download.generate_presigned_url(
        "get_object", Params={"Bucket": bucket, "Key": "_receipts/a.csv"}, ExpiresIn=60
    )
    assert fetch(url) == (200, b"id\n1\n")
    forbidden: list[Callable[[], object]] = [
        lambda: download.put_object(Bucket=bucket, Key="_receipts/a.csv", Body=b""),
        lambda: download.list_objects_v2(Bucket=bucket),
        lambda: download.delete_object(Bucket=bucket, Key="_receipts/a.csv"),
        lambda: download.create_multipart_upload(Bucket=bucket, Key="c"),
        lambda: download.create_bucket(Bucket="another"),
    ]
    for act in forbidden:
        with pytest.raises(ClientError, match="AccessDenied"):
            act()
    assert admin.get_object(Bucket=bucket, Key="_receipts/a.csv")["Body"].read() == b"id\n1\n"


def test_objects_are_not_readable_without_a_key(stack_servers: Servers) -> None:
    stack_servers.seaweedfs.client.put_object(Bucket=stack_servers.seaweedfs.bucket, Key="secret", Body=b"x")
    assert fetch(f"{stack_servers.seaweedfs.url}/{stack_servers.seaweedfs.bucket}/secret")[0] == 403


def test_the_bucket_aborts_abandoned_uploads_after_a_day(stack_servers: Servers) -> None:
    response = stack_servers.seaweedfs.client.get_bucket_lifecycle_configuration(Bucket=stack_servers.seaweedfs.bucket)
    assert response["Rules"][0]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}


def test_postgres_is_configured_to_detect_killed_clients_within_a_second(stack_servers: Servers) -> None:
    with psycopg.connect(stack_servers.postgres.url("sluice")) as connection:
        assert connection.execute("SHOW client_connection_check_interval").fetchone() == ("1s",)


@pytest.mark.parametrize("role", ["sluice", "source"])
def test_each_role_can_create_schemas_and_is_not_a_superuser(stack_servers: Servers, role: str) -> None:
    with psycopg.connect(stack_servers.postgres.url(role)) as connection:
        connection.execute("CREATE SCHEMA mine")
        connection.execute("SELECT count(*) FROM pg_stat_statements")
        assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (False,)
        connection.rollback()


def test_the_databases_require_a_password(stack_servers: Servers) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://sluice:wrong@127.0.0.1:{stack_servers.postgres.port}/sluice")
    with pytest.raises(redis.AuthenticationError):
        redis.Redis.from_url(f"redis://127.0.0.1:{stack_servers.valkey.port}", retry=None).ping()


def test_valkey_persists_data_and_never_evicts(stack_servers: Servers) -> None:
    with redis.Redis.from_url(stack_servers.valkey.url(), decode_responses=True) as client:
        wanted = {"appendonly": "yes", "maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly", "maxmemory-policy") == wanted


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_data_survives_a_restart(stack_servers: Servers, end: str) -> None:
    write(stack_servers, end)
    before = stack_servers.environment()
    for server in stack_servers.all:
        getattr(server, end)()
    for server in stack_servers.all:
        server.start()
    assert stack_servers.environment() == before
    assert read(stack_servers) == (end, end, end)


@pytest.mark.slow
def test_objects_can_be_written_as_soon_as_the_storage_is_up_again(stack_servers: Servers) -> None:
    """Regression: in about one of five starts, SeaweedFS refused writes for 15 s because of its old state."""
    seaweedfs = stack_servers.seaweedfs
    for _ in range(5):
        seaweedfs.kill()
        seaweedfs.start()
        began = time.monotonic()
        seaweedfs.client.put_object(Bucket=seaweedfs.bucket, Key="again", Body=b"x")
        assert time.monotonic() - began < 5


def test_a_killed_database_keeps_all_commits(stack_servers: Servers) -> None:
    """`kill` must not kill the WAL writer too early. Otherwise, the last of many commits could be lost."""
    postgres = stack_servers.postgres
    with psycopg.connect(postgres.url("sluice"), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS numbers (n int)")
        connection.execute("TRUNCATE numbers")
        for number in range(200):
            connection.execute("INSERT INTO numbers VALUES (%s)", [number])
        postgres.kill()
    postgres.start()
    with psycopg.connect(postgres.url("sluice")) as connection:
        assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (200,)


def test_a_killed_postgres_restarts_while_an_old_query_still_runs(stack_servers: Servers) -> None:
    postgres = stack_servers.postgres
    pids = process_tree.members(postgres.pid)
    with closing(psycopg.connect(postgres.url("sluice"))) as connection:
        backend = connection.info.backend_pid
        # A busy backend does not notice that the postmaster was killed, because it does not wait for anything.
        connection.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 2000000000) i WHERE md5(i::text) = ''")
        wait_until(lambda: is_busy(postgres, backend))  # an idle backend would exit
        os.kill(postgres.pid, signal.SIGKILL)
        assert process_tree.wait_gone([postgres.pid], limit=5)
        assert process_tree.exists(backend)
        postgres.kill()
        postgres.start()
        assert not any(map(process_tree.exists, {*pids, backend}))


def is_busy(postgres: Postgres, backend: int) -> bool:
    with psycopg.connect(postgres.url("sluice")) as connection:
        row = connection.execute("SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s", [backend]).fetchone()
        return row == (True,)


@pytest.mark.slow
def test_two_stacks_run_side_by_side_and_leave_nothing_behind(stack_servers: Servers, tmp_path: Path) -> None:
    write(stack_servers, "first")
    with servers.running(tmp_path / "second", durable=False) as second:
        write(second, "second")
        pids = [pid for server in second.all for pid in process_tree.members(server.pid)]
        assert read(stack_servers) == ("first", "first", "first")
        assert temporary_sockets(tmp_path / "second")
    assert not any(map(process_tree.exists, pids))
    assert not [path for path in temporary_sockets(tmp_path / "second") if not is_served(path)]


def test_it_moves_to_free_ports_when_its_own_are_taken(stack_servers: Servers, tmp_path: Path) -> None:
    taken = stack_servers.kept.ports
    copy = Servers(tmp_path, durable=False)
    copy.kept.ports.update(taken)
    try:
        copy.valkey.start()
        assert copy.valkey.port != stack_servers.valkey.port
    finally:
        copy.stop()


def fetch(url: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=10)) as connection:
        connection.request("GET", f"{parts.path}?{parts.query}")
        response = connection.getresponse()
        return response.status, response.read()


def write(running: Servers, value: str) -> None:
    with psycopg.connect(running.postgres.url("sluice")) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (value text)")
        connection.execute("TRUNCATE kept")
        connection.execute("INSERT INTO kept VALUES (%s)", [value])
    with redis.Redis.from_url(running.valkey.url()) as client:
        client.set("kept", value)
    running.seaweedfs.client.put_object(Bucket=running.seaweedfs.bucket, Key="kept", Body=value.encode())


def read(running: Servers) -> tuple[str, str, str]:
    with psycopg.connect(running.postgres.url("sluice")) as connection:
        row = connection.execute("SELECT value FROM kept").fetchone()
    with redis.Redis.from_url(running.valkey.url(), decode_responses=True) as client:
        cached = client.get("kept")
    body = running.seaweedfs.client.get_object(Bucket=running.seaweedfs.bucket, Key="kept")["Body"].read()
    return row[0] if row else "", str(cached), body.decode()
