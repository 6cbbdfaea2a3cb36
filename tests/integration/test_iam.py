"""The policies and bucket rules of docs/iam/, enforced by SeaweedFS. A22, A26."""

import ast
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import boto3
import pytest
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import ClientError
from django.conf import LazySettings
from django.contrib.auth.models import User
from pydantic import AnyHttpUrl, SecretStr
from rest_framework.test import APIClient

from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.seaweedfs import IAM, REGION, SeaweedFS, policy
from config.platform import storage
from config.platform.storage import copies, probe
from exports.delivery import links
from exports.maintenance import periodic
from exports.models import Chunk, Dataset, Job, Receipt
from exports.worker import completion, execution
from tests.conftest import change_settings
from tests.integration.factories import make_job
from tests.integration.test_completion import finish
from tests.waiting import wait_until

OTHER_BUCKET = "another-service"
MIB = 1024 * 1024

# The actions that AWS requires for each method (Service Authorization Reference). SeaweedFS uses the same names.
ACTIONS = {
    "abort_multipart_upload": {"s3:AbortMultipartUpload"},
    "complete_multipart_upload": {"s3:PutObject"},
    "copy_object": {"s3:GetObject", "s3:PutObject"},
    "create_multipart_upload": {"s3:PutObject"},
    "delete_object": {"s3:DeleteObject"},
    "delete_objects": {"s3:DeleteObject"},
    "get_bucket_lifecycle_configuration": {"s3:GetLifecycleConfiguration"},  # the doctor reads it
    "get_object": {"s3:GetObject"},
    "head_bucket": {"s3:ListBucket"},
    # With s3:ListBucket, the response for a missing object is 404 and not 403.
    "head_object": {"s3:GetObject", "s3:ListBucket"},
    "list_multipart_uploads": {"s3:ListBucketMultipartUploads"},
    "list_objects_v2": {"s3:ListBucket"},
    "put_object": {"s3:PutObject"},
    "upload_part": {"s3:PutObject"},
    "upload_part_copy": {"s3:GetObject", "s3:PutObject"},
}


class Keys(NamedTuple):
    id: str
    secret: str


class SeaweedFSWithIam(SeaweedFS):
    """SeaweedFS with its IAM API for users and policies, set up as in docs/object-storage.md."""

    def options(self) -> list[str]:
        return [*super().options(), "-s3.iam.readOnly=false"]

    def user(self, name: str, document: str) -> Keys:
        """Create a user with one policy."""
        key, secret = self.operator
        iam: Any = boto3.client(
            "iam", endpoint_url=self.url, region_name=REGION, aws_access_key_id=key, aws_secret_access_key=secret
        )
        created = iam.create_policy(PolicyName=name, PolicyDocument=document)
        iam.create_user(UserName=name)
        iam.attach_user_policy(UserName=name, PolicyArn=created["Policy"]["Arn"])
        keys = iam.create_access_key(UserName=name)["AccessKey"]
        return Keys(keys["AccessKeyId"], keys["SecretAccessKey"])

    def client_of(self, keys: Keys) -> Any:
        return boto3.client(
            "s3", endpoint_url=self.url, region_name=REGION, aws_access_key_id=keys.id,
            aws_secret_access_key=keys.secret, config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFSWithIam]:
    root = tmp_path_factory.mktemp("iam")
    server = SeaweedFSWithIam(root, KeptSettings(root), durable=False, given={})
    try:
        server.start()
        server.client.create_bucket(Bucket=OTHER_BUCKET)
        server.client.put_object(Bucket=OTHER_BUCKET, Key="_receipts/secret", Body=b"theirs")
        yield server
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def empty_bucket(store: SeaweedFSWithIam) -> None:
    for upload in store.client.list_multipart_uploads(Bucket=store.bucket).get("Uploads", []):
        store.client.abort_multipart_upload(Bucket=store.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    for item in store.client.list_objects_v2(Bucket=store.bucket).get("Contents", []):
        store.client.delete_object(Bucket=store.bucket, Key=item["Key"])


@pytest.fixture(scope="module")
def service(store: SeaweedFSWithIam) -> Keys:
    return store.user("service-user", policy("service", bucket=store.bucket))


@pytest.fixture(scope="module")
def download(store: SeaweedFSWithIam) -> Keys:
    return store.user("download-user", policy("download", bucket=store.bucket))


@pytest.fixture
def sluice(store: SeaweedFSWithIam, service: Keys, download: Keys, settings: LazySettings) -> LazySettings:
    """Configure Sluice for this server, with both keys."""
    use(settings, store, service, download)
    return settings


def use(settings: LazySettings, store: SeaweedFSWithIam, service: Keys, download: Keys) -> None:
    change_settings(
        settings,
        s3_endpoint_url=AnyHttpUrl(store.url),
        s3_bucket=store.bucket,
        s3_access_key_id=SecretStr(service.id),
        s3_secret_access_key=SecretStr(service.secret),
        s3_download_access_key_id=SecretStr(download.id),
        s3_download_secret_access_key=SecretStr(download.secret),
    )


def actions(name: str) -> set[str]:
    document = json.loads((IAM / f"{name}.json").read_text())
    return {action for statement in document["Statement"] for action in statement["Action"]}


# ---- The service's key ----------------------------------------------------------------------------------------------


def test_the_policies_allow_exactly_the_actions_in_use() -> None:
    """A22: SeaweedFS does not enforce every action as AWS does, so this test compares the policies with the code."""
    called: dict[str, set[str]] = {"client": set(), "connect": set()}
    for path in Path(storage.__file__).parent.glob("*.py"):
        for maker, method in client_calls(ast.parse(path.read_text())):
            called[maker].add(method)
    presigned = called["connect"] - {"head_bucket"}  # the health check

    assert {action for name in called["client"] | {"head_bucket"} for action in ACTIONS[name]} == actions("service")
    assert presigned == {"get_object", "put_object"}
    assert actions("download") == {"s3:GetObject"}


def client_calls(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the client and the method of each `client().method(…)` and `connect(…).method(…)`.

    For `generate_presigned_url`, yield the method that is presigned.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Name(id="connect")), attr="generate_presigned_url"),
                args=[ast.Constant(value=str(method))],
            ):
                yield "connect", method
            case ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Name(id="client" | "connect" as maker)), attr=attr)
            ):
                yield maker, attr


def use_everything() -> None:
    """Call every S3 method that config.platform.storage uses."""
    text: Any = {"content_type": "text/plain"}
    storage.ping()
    storage.now()
    assert probe.lifecycle()
    assert storage.head("all/missing") is None
    small = storage.put("all/small", b"small", **text)
    storage.put("all/of one part", bytes(2 * MIB), **text)
    with storage.Upload("all/large", if_match=None, metadata={}, checkpoint=lambda: None, **text) as upload:
        upload.write(bytes(9 * MIB))
        large = upload.commit()
    for stored in (small, large):
        facts: Any = {"if_match_source": stored.etag, "size": stored.size, "sha256": stored.sha256}
        storage.copy(stored.key, f"{stored.key}-copy", **facts, **text)
    assert b"".join(storage.read("all/small-copy")) == b"small"
    assert storage.read_span("all/small-copy", start=0, size=2) == b"sm"
    ticket = storage.presign_upload("all/put", seconds=60, size=3, metadata={"filename": "x"}, **text)
    if fetch(ticket.url, method="PUT", data=b"put", headers=ticket.headers)[0] != 200:
        raise storage.RequestFailed("the presigned PUT was refused")
    storage.put("all/small", b"changed", if_match=small.etag, **text)
    storage.client().create_multipart_upload(Bucket=storage.clients.bucket(), Key="all/forgotten")
    for forgotten in list(storage.list_uploads("all/")):
        storage.abort_upload(forgotten.key, forgotten.upload_id)
    storage.delete("all/large", if_match=large.etag)
    storage.delete_many([item.key for item in storage.list_objects("all/")])


@pytest.fixture
def large_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy objects above 5 MiB in parts."""
    monkeypatch.setattr(copies, "COPY_BYTES", 5 * MIB)


@pytest.fixture
def called_methods(sluice: LazySettings) -> Iterator[set[str]]:
    """Collect the methods that are called on the service's client."""
    methods: set[str] = set()

    def record(*, model: Any, **_later: object) -> None:
        methods.add(xform_name(model.name))

    events = storage.client().meta.events
    events.register("before-call.s3", record)
    yield methods
    events.unregister("before-call.s3", record)


@pytest.mark.usefixtures("sluice", "large_copies")
def test_the_service_policy_suffices_for_every_storage_call(called_methods: set[str]) -> None:
    """A22."""
    use_everything()
    assert {action for method in called_methods for action in ACTIONS[method]} == actions("service")
    assert called_methods | {"head_bucket"} == set(ACTIONS)
    assert not list(storage.list_objects("all/"))
    assert not list(storage.list_uploads("all/"))


# In SeaweedFS, the permission to put includes the permission to abort, so that action cannot be tested here.
@pytest.mark.parametrize("missing", sorted(actions("service") - {"s3:AbortMultipartUpload"}))
@pytest.mark.usefixtures("large_copies")
def test_every_action_of_the_service_policy_is_needed(
    missing: str, store: SeaweedFSWithIam, download: Keys, settings: LazySettings
) -> None:
    """A22: the policy has the least privileges: a call fails if any action is removed."""
    document = json.loads(policy("service", bucket=store.bucket))
    for statement in document["Statement"]:
        statement["Action"] = [action for action in statement["Action"] if action != missing]
    keys = store.user(f"without-{missing.removeprefix('s3:')}", json.dumps(document))
    use(settings, store, keys, download)

    with pytest.raises((storage.StorageError, ClientError)):
        use_everything()


@pytest.mark.usefixtures("sluice")
def test_the_service_policy_suffices_for_a_whole_export(dataset: Dataset, alice: User) -> None:
    """A22."""
    one, many = make_job(dataset, alice, 1), make_job(dataset, alice, 3, reuse="never")
    execution.drain()
    execution.drain()
    for job in (one, many):
        completion.complete(job.pk)
    again = make_job(dataset, alice, 3)
    execution.drain()
    completion.complete(again.pk)
    again.refresh_from_db()
    assert again.reused == 3
    assert set(Job.objects.values_list("status", flat=True)) == {"success"}

    Receipt.objects.update(expires_at="2024-01-01T00:00:00Z")
    periodic.sweep()
    periodic.reap()
    assert Receipt.objects.exclude(deleted_at=None).count() == 3
    assert not list(storage.list_objects("_receipts/"))


def refused_to_the_service(bucket: str) -> list[Callable[[Any], object]]:
    everyone = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/*"}
    return [
        lambda s3: s3.create_bucket(Bucket="a-new-one"),
        lambda s3: s3.delete_bucket(Bucket=bucket),
        lambda s3: s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Statement": [everyone]})),
        lambda s3: s3.delete_bucket_lifecycle(Bucket=bucket),
        lambda s3: s3.put_object_acl(Bucket=bucket, Key="things/a", ACL="public-read"),
        lambda s3: s3.get_object(Bucket=OTHER_BUCKET, Key="_receipts/secret"),
        lambda s3: s3.put_object(Bucket=OTHER_BUCKET, Key="_receipts/secret", Body=b""),
        lambda s3: s3.list_objects_v2(Bucket=OTHER_BUCKET),
        lambda s3: s3.delete_bucket(Bucket=OTHER_BUCKET),
    ]


def test_the_service_key_allows_nothing_else(store: SeaweedFSWithIam, service: Keys) -> None:
    """A22."""
    store.client.put_object(Bucket=store.bucket, Key="things/a", Body=b"x")
    assert_refused(store.client_of(service), refused_to_the_service(store.bucket))


def assert_refused(s3: Any, attempts: list[Callable[[Any], object]]) -> None:
    for number, attempt in enumerate(attempts):
        with pytest.raises(ClientError) as refusal:
            attempt(s3)
        assert refusal.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403, f"attempt {number}"


# ---- The download key -----------------------------------------------------------------------------------------------


def refused_to_downloads(bucket: str) -> list[Callable[[Any], object]]:
    of_ours = {"Bucket": bucket, "Key": "_receipts/a"}
    return [
        lambda s3: s3.list_objects_v2(Bucket=bucket),
        lambda s3: s3.list_objects_v2(Bucket=bucket, Prefix="_receipts/"),
        lambda s3: s3.list_multipart_uploads(Bucket=bucket),
        lambda s3: s3.head_bucket(Bucket=bucket),
        lambda s3: s3.put_object(**of_ours, Body=b""),
        lambda s3: s3.copy_object(**of_ours, CopySource={**of_ours, "Key": "things/a"}),
        lambda s3: s3.create_multipart_upload(**of_ours),
        lambda s3: s3.delete_object(**of_ours),
        lambda s3: s3.get_object_tagging(**of_ours),
        lambda s3: s3.get_object(Bucket=bucket, Key="things/a"),
        lambda s3: s3.get_object(Bucket=bucket, Key="etl/tasks/a"),
        lambda s3: s3.get_object(Bucket=OTHER_BUCKET, Key="_receipts/secret"),
    ]


def test_the_download_key_reads_only_deliveries_images_and_documents(store: SeaweedFSWithIam, download: Keys) -> None:
    """A22."""
    for key in ("_receipts/a", "things/a", "etl/documents/a", "etl/images/a", "etl/tasks/a"):
        store.client.put_object(Bucket=store.bucket, Key=key, Body=b"x")
    s3 = store.client_of(download)
    for key in ("_receipts/a", "etl/documents/a", "etl/images/a"):
        url = s3.generate_presigned_url("get_object", Params={"Bucket": store.bucket, "Key": key}, ExpiresIn=60)
        assert fetch(url)[0] == 200
    url = s3.generate_presigned_url("put_object", Params={"Bucket": store.bucket, "Key": "_receipts/a"}, ExpiresIn=60)
    assert fetch(url, method="PUT")[0] == 403

    assert_refused(s3, refused_to_downloads(store.bucket))
    assert s3.list_buckets()["Buckets"] == []


def fetch(url: str, *, method: str = "GET", **sent: Any) -> tuple[int, Any]:
    """Request a URL, and return the HTTP status and the headers."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method, **sent)) as reply:  # noqa: S310
            return int(reply.status), reply.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers


def redirect_of(api: APIClient, path: str) -> str:
    response = api.get(path)
    assert response.status_code == 302
    return str(response["Location"])


def make_receipt(dataset: Dataset, alice: User, **changes: Any) -> Receipt:
    return finish(make_job(dataset, alice, 1, **changes))


@pytest.mark.parametrize("delivery", ["single", "manifest"])
def test_a_redirect_is_signed_with_the_download_key_including_type_and_name(
    dataset: Dataset, alice: User, api: APIClient, sluice: LazySettings, delivery: str
) -> None:
    """A22: this applies to links and to the files of a manifest."""
    receipt = make_receipt(dataset, alice, delivery=delivery)
    path = links.path_of(receipt.links.get())
    if delivery == "manifest":
        chunk = Chunk.objects.get()
        path = f"/exports/{receipt.pk}/files/{chunk.key}/{chunk.effective_date}"
    url = redirect_of(api, path)

    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    key = sluice.SLUICE.s3_download_access_key_id
    assert key
    assert query["X-Amz-Credential"].partition("/")[0] == key.get_secret_value()
    assert query["X-Amz-Algorithm"] == "AWS4-HMAC-SHA256"
    assert int(query["X-Amz-Expires"]) == sluice.SLUICE.export_presign_seconds <= 60
    status, headers = fetch(url)
    assert (status, headers["Content-Type"]) == (200, "text/csv; charset=utf-8")
    assert headers["Content-Disposition"].startswith('attachment; filename="JFK_20240228.csv"')
    for name, other in {
        "response-content-type": "text/html",
        "response-content-disposition": "inline",
        "X-Amz-Expires": "3600",
    }.items():
        old = f"{name}={quote(query[name], safe='')}"
        assert old in url
        assert fetch(url.replace(old, f"{name}={other}"))[0] == 403, name
        assert fetch(url.replace(old, "").replace("&&", "&"))[0] in {400, 403}, name
    assert fetch(url.replace("JFK", "EWR"))[0] == 403


def test_a_redirect_expires(dataset: Dataset, alice: User, api: APIClient, sluice: LazySettings) -> None:
    """A22."""
    receipt = make_receipt(dataset, alice)
    assert fetch(redirect_of(api, links.path_of(receipt.links.get())))[0] == 200
    sluice.SLUICE = sluice.SLUICE.model_copy(update={"export_presign_seconds": 1})
    url = redirect_of(api, api.post(f"/exports/{receipt.pk}/link").json()["signedUrl"])
    wait_until(lambda: fetch(url)[0] == 403)


# ---- The bucket -----------------------------------------------------------------------------------------------------


def test_the_bucket_has_the_documented_lifecycle(store: SeaweedFSWithIam) -> None:
    """A26: the lifecycle rules are the fallback if no sweep runs for a day."""
    rules = store.client.get_bucket_lifecycle_configuration(Bucket=store.bucket)["Rules"]
    assert rules == json.loads((IAM / "lifecycle.json").read_text())["Rules"]


def test_the_bucket_policy_requires_tls(store: SeaweedFSWithIam) -> None:
    """A22: this server has no TLS, so the test uses a separate bucket."""
    store.client.create_bucket(Bucket="only-tls")
    store.client.put_object(Bucket="only-tls", Key="a", Body=b"x")
    store.client.put_bucket_policy(Bucket="only-tls", Policy=policy("bucket", bucket="only-tls"))
    assert_refused(store.client, [lambda s3: s3.get_object(Bucket="only-tls", Key="a")])
