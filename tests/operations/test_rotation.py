"""Key rotation in a running installation, as in docs/runbook.md#keys-are-rotated. A22, A25."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import boto3
import httpx2
import psycopg
import pytest
import redis
from botocore.exceptions import ClientError
from django.conf import LazySettings, settings
from django.contrib.auth.models import User
from django.db.models.functions import Now
from django.test import Client
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr
from rest_framework.test import APIClient
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.orphan_watchdog import PROJECT
from config.dev.stack.postgres import SUPERUSER
from config.dev.stack.processes import Web, worker
from config.dev.stack.seaweedfs import SeaweedFS, policy
from config.dev.stack.valkey import Valkey
from config.ops.doctor import database, storage
from config.platform.webhooks import sender, subscriptions
from exports.delivery import links
from exports.models import Chunk, Dataset, Job
from tests import servers
from tests.broker import lose_messages
from tests.integration import test_iam
from tests.integration.factories import finish, make_job
from tests.integration.receiver import Received, receiver
from tests.integration.test_doctor import name_of, passes
from tests.integration.test_iam import Keys, SeaweedFSWithIam
from tests.serving import serving, variables
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)  # the tests start several web processes
NEW = "a-new-key-for-tests-0123456789-0123456789-0123456789"


# ---- SECRET_KEY -----------------------------------------------------------------------------------------------------
@pytest.fixture
def rounds(transactional_db: None, tmp_path: Path) -> Iterator[list[Web]]:
    """Web processes on one database: one from before the rotation, and one for each round of the runbook's table."""
    old = settings.SECRET_KEY
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:

        def start(number: int, key: str, fallbacks: str) -> Web:
            root = tmp_path / str(number)
            root.mkdir()
            keys = {"SECRET_KEY": key, "SECRET_KEY_FALLBACKS": fallbacks, "DEBUG": "true"}
            return stack.enter_context(serving(root, variables(root, **keys)))

        yield list(pool.map(start, range(4), (old, old, NEW, NEW), ("", NEW, old, "")))


Submit = Callable[[str], Job]


@pytest.fixture
def submit(dataset: Dataset, alice: User) -> Submit:
    """Create a job of one chunk for a key."""
    return lambda key: make_job(dataset, alice, 1, key=key)


@pytest.fixture
def finished(submit: Submit) -> Job:
    return finish(submit("JFK"))


def link_at(web: Web, job: Job, token: str) -> str:
    """Return the link that a web process shows to the job's owner, without the host."""
    response = httpx2.get(f"{web.url}/exports/{job.pk}", headers={"Authorization": f"Bearer {token}"}, timeout=30)
    url = str(response.json()["receipt"]["signedUrl"])
    return url[url.index("/exports/") :]


def accepts(web: Web, path: str) -> bool:
    """Return whether a process accepts a link. HEAD does not redeem it."""
    return httpx2.head(f"{web.url}{path}", timeout=30).status_code < 400


def is_signed_in(session: httpx2.Client, web: Web) -> bool:
    return session.get(f"{web.url}/app/account", timeout=30).status_code == 200


@pytest.fixture
def session(alice: User) -> Iterator[httpx2.Client]:
    """A client that is signed in to all processes."""
    client = Client()
    client.force_login(alice)
    with httpx2.Client() as session:
        session.cookies.set("sessionid", client.cookies["sessionid"].value, domain="127.0.0.1")
        yield session


def test_links_and_sessions_survive_the_three_rounds_in_any_order(
    rounds: list[Web], finished: Job, token: str, session: httpx2.Client
) -> None:
    """C6. In two successive rounds, the processes of each accept the signatures of the other."""
    shown = [link_at(web, finished, token) for web in rounds]
    for number in range(3):
        one, other = rounds[number], rounds[number + 1]
        for signing, process in ((number, other), (number + 1, one), (number, one), (number + 1, other)):
            assert accepts(process, shown[signing])
        assert is_signed_in(session, one)
        assert is_signed_in(session, other)
        assert is_signed_in(session, one)


def test_signatures_of_the_old_key_are_rejected_after_the_last_round(
    rounds: list[Web], finished: Job, token: str, session: httpx2.Client
) -> None:
    before, last = link_at(rounds[0], finished, token), rounds[3]
    response = httpx2.get(f"{last.url}{before}", timeout=30)
    assert response.json()["code"] == "link_invalid"
    assert not is_signed_in(session, last)
    assert accepts(last, link_at(last, finished, token))  # the owner sees a new link


def test_skipping_the_first_round_makes_old_processes_reject_new_signatures(
    rounds: list[Web], finished: Job, token: str, session: httpx2.Client
) -> None:
    """The reason for three rounds: otherwise links are refused, and sessions end."""
    before, second = rounds[0], rounds[2]
    assert accepts(second, link_at(before, finished, token))
    assert not accepts(before, link_at(second, finished, token))
    assert is_signed_in(session, second)
    assert not is_signed_in(session, before)


@pytest.mark.parametrize("of_workers", ["old", "new"])
def test_workers_can_be_restarted_before_or_after_web(
    rounds: list[Web], submit: Submit, token: str, tmp_path: Path, of_workers: str
) -> None:
    """Workers sign nothing, so web accepts its own signatures throughout."""
    lose_messages()
    key = {"SECRET_KEY": NEW if of_workers == "new" else settings.SECRET_KEY}
    started = worker(
        "rolled", queues="exports,bundles", concurrency=1, root=tmp_path, environment=variables(tmp_path, **key)
    )
    job = submit("JFK")
    try:
        started.start()
        wait_until(lambda: Job.objects.get(pk=job.pk).status == "success")
    finally:
        started.kill()
    for web in (rounds[0], rounds[3]):
        assert accepts(web, link_at(web, job, token))


# ---- Keys of the object storage -------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFSWithIam]:
    root = tmp_path_factory.mktemp("rotation")
    server = SeaweedFSWithIam(root, KeptSettings(root), durable=False, given={})
    try:
        server.start()
        yield server
    finally:
        server.stop()


def iam(store: SeaweedFSWithIam) -> Any:
    key, secret = store.operator
    return boto3.client(
        "iam", endpoint_url=store.url, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=secret
    )


def second_pair(store: SeaweedFSWithIam, first: Keys) -> Keys:
    """Create a second pair for the user of the first."""
    made = iam(store).create_access_key(UserName=user_of(store, first))["AccessKey"]
    return Keys(made["AccessKeyId"], made["SecretAccessKey"])


Use = Callable[[Keys, Keys], dict[str, str]]


@pytest.fixture
def use(store: SeaweedFSWithIam, settings: LazySettings) -> Use:
    """Make this process use a pair for the service and one for downloads. Returns the variables for other processes."""

    def use(service: Keys, download: Keys) -> dict[str, str]:
        test_iam.use(settings, store, service, download)
        return {
            "S3_ENDPOINT_URL": store.url,
            "S3_BUCKET": store.bucket,
            "S3_ACCESS_KEY_ID": service.id,
            "S3_SECRET_ACCESS_KEY": service.secret,
            "S3_DOWNLOAD_ACCESS_KEY_ID": download.id,
            "S3_DOWNLOAD_SECRET_ACCESS_KEY": download.secret,
        }

    return use


@pytest.fixture
def pairs(store: SeaweedFSWithIam) -> tuple[Keys, Keys]:
    """The first pair of each of the two users."""
    name = os.urandom(4).hex()
    service = store.user(f"service-{name}", policy("service", bucket=store.bucket))
    download = store.user(f"download-{name}", policy("download", bucket=store.bucket))
    return service, download


def user_of(store: SeaweedFSWithIam, keys: Keys) -> str:
    for user in iam(store).list_users()["Users"]:
        listed = iam(store).list_access_keys(UserName=user["UserName"])["AccessKeyMetadata"]
        if keys.id in {each["AccessKeyId"] for each in listed}:
            return str(user["UserName"])
    raise AssertionError


def delete_key(store: SeaweedFSWithIam, keys: Keys) -> None:
    iam(store).delete_access_key(UserName=user_of(store, keys), AccessKeyId=keys.id)


def redirected(api: APIClient, job: Job) -> str:
    return str(api.get(links.path_of(job.receipt.links.get(used_at=None)))["Location"])


def test_both_key_pairs_work_until_the_old_one_is_deleted(
    store: SeaweedFSWithIam, pairs: tuple[Keys, Keys], use: Use, submit: Submit, api: APIClient
) -> None:
    newer = (second_pair(store, pairs[0]), second_pair(store, pairs[1]))
    urls = []
    for number, (service, download) in enumerate((pairs, newer, pairs)):
        use(service, download)
        urls.append(redirected(api, finish(submit(f"K{number}"))))
    assert [httpx2.get(url, timeout=10).status_code for url in urls] == [200, 200, 200]

    for keys in pairs:
        delete_key(store, keys)
    wait_until(lambda: httpx2.get(urls[0], timeout=10).status_code == 403)
    assert httpx2.get(urls[1], timeout=10).status_code == 200
    use(*newer)
    finish(submit("K9"))
    for check in storage.SUBJECT.checks:
        assert passes(storage.SUBJECT, name_of(check)), check


def test_chunks_wait_when_the_old_pair_is_deleted_too_early(
    store: SeaweedFSWithIam, pairs: tuple[Keys, Keys], use: Use, submit: Submit, tmp_path: Path
) -> None:
    """A40: with a worker that still has the deleted pair, and then with one that has the new pair."""
    lose_messages()
    newer = (second_pair(store, pairs[0]), pairs[1])
    environment = variables(tmp_path, **use(*pairs))
    outdated = worker("outdated", queues="exports", concurrency=1, root=tmp_path, environment=environment)
    try:
        outdated.start()
        wait_until(lambda: "ready." in outdated.log.read_text())
        delete_key(store, pairs[0])
        wait_until(lambda: not passes(storage.SUBJECT, "reading"))
        job = submit("JFK")
        wait_until(lambda: "storage_unavailable" in outdated.log.read_text())
    finally:
        outdated.kill()
    assert set(job.chunks.values_list("status", "attempts")) <= {("pending", 0), ("retrying", 0)}

    use(*newer)
    Chunk.objects.filter(status="retrying").update(available_at=Now())
    finish(job)


def test_seaweedfs_reloads_its_keys_on_a_signal(tmp_path_factory: pytest.TempPathFactory) -> None:
    """With both pairs of an identity, as in docker/compose.yaml, then with the new one only."""
    root = tmp_path_factory.mktemp("reload")
    server = SeaweedFS(root, KeptSettings(root), durable=False, given={})
    try:
        server.start()
        document = json.loads(server.identities.read_text())
        (service,) = [each for each in document["identities"] if each["name"] == "service"]
        old = Keys(service["credentials"][0]["accessKey"], service["credentials"][0]["secretKey"])
        new = Keys("second", "second-secret")
        both = [*service["credentials"], {"accessKey": new.id, "secretKey": new.secret}]
        for credentials, valid in ((both, {old, new}), (both[1:], {new})):
            service["credentials"] = credentials
            server.identities.write_text(json.dumps(document))
            os.kill(server.pid, signal.SIGHUP)
            wait_until(partial(only_these_work, server, valid, candidates=(old, new)))
    finally:
        server.stop()


def only_these_work(server: SeaweedFS, valid: set[Keys], *, candidates: tuple[Keys, ...]) -> bool:
    return {keys for keys in candidates if can_sign_in(server, keys)} == valid


def can_sign_in(server: SeaweedFS, keys: Keys) -> bool:
    s3 = boto3.client(
        "s3", endpoint_url=server.url, region_name="us-east-1",
        aws_access_key_id=keys.id, aws_secret_access_key=keys.secret,
    )  # fmt: skip
    try:
        s3.list_objects_v2(Bucket=server.bucket)
    except ClientError:
        return False
    return True


# ---- Secrets of webhooks --------------------------------------------------------------------------------------------
def verifies(secret: str, received: Received) -> bool:
    try:
        Verifier(secret).verify(received.body, received.headers)
    except WebhookVerificationError:
        return False
    return True


def test_webhooks_are_signed_with_the_last_two_secrets(api: APIClient, alice: User, settings: LazySettings) -> None:
    settings.SLUICE = settings.SLUICE.model_copy(update={"export_webhook_allow_cidrs": [ip_network("127.0.0.0/8")]})
    with receiver() as hook:
        made = subscriptions.create(user_id=alice.pk, url=hook.url, events=["export.succeeded"])
        secrets = [made.secret]
        signed = []
        for _ in range(3):
            api.post(f"/exports/webhooks/{made.pk}/test")
            sender.drain()
            signed.append([verifies(secret, hook.received[-1]) for secret in secrets])
            secrets.append(api.post(f"/exports/webhooks/{made.pk}/rotate-secret").json()["secret"])
    assert signed == [[True], [True, True], [False, True, True]]


# ---- Passwords ------------------------------------------------------------------------------------------------------
def test_a_second_role_can_replace_the_first(
    dataset: Dataset, alice: User, settings: LazySettings, tmp_path: Path
) -> None:
    """A role that is a member of the owner of the tables, so that two passwords work during the rotation."""
    make_job(dataset, alice, 1)
    server = servers.started[0].postgres
    with psycopg.connect(server.url(SUPERUSER), autocommit=True) as admin:
        admin.execute("CREATE ROLE sluice2 LOGIN PASSWORD 'second' IN ROLE sluice")
        try:
            second = {"user": "sluice2", "password": "second"}
            environment = variables(tmp_path)
            environment["DATABASE_URL"] = make_conninfo(environment["DATABASE_URL"], **second)
            url = SecretStr(environment["DATABASE_URL"])
            settings.SLUICE = settings.SLUICE.model_copy(update={"database_url": url})
            for check in ("version", "writable", "rights", "migrations"):
                assert passes(database.SUBJECT, check), check
            done = subprocess.run(
                [sys.executable, "manage.py", "repair", "cancel", str(Job.objects.get().pk)],
                check=False, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        finally:
            admin.execute("DROP ROLE sluice2")
    assert Job.objects.get().status == "cancelled"


def test_redis_accepts_both_passwords_during_rotation(tmp_path: Path) -> None:
    server = Valkey(tmp_path, KeptSettings(tmp_path), durable=False)
    server.start()
    try:
        old = server.kept.secret("valkey")

        def can_sign_in(password: str) -> bool:
            with redis.Redis(port=server.port, password=password) as client:
                try:
                    return bool(client.ping())
                except redis.AuthenticationError:
                    return False

        with redis.Redis(port=server.port, password=old) as client:
            assert [can_sign_in(old), can_sign_in("new")] == [True, False]
            client.execute_command("ACL SETUSER default >new")
            assert [can_sign_in(old), can_sign_in("new")] == [True, True]
            client.execute_command(f"ACL SETUSER default <{old}")
            assert [can_sign_in(old), can_sign_in("new")] == [False, True]
    finally:
        server.stop()
