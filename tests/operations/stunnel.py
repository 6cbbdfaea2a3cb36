"""TLS in front of a server without TLS, by stunnel, with certificates by openssl."""

import subprocess
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.ports import LOOPBACK, is_free
from config.dev.stack.process import Process
from config.dev.stack.server import LocalServer
from tests.operations import debian

CONFIGURATION = """\
foreground = yes
pid =
socket = l:SO_REUSEADDR=1
[server]
accept = {host}:{port}
connect = {upstream}
cert = {certificate}
key = {key}
"""


class Authority:
    """A test certificate authority: `authority.issue("localhost")` returns a certificate and its key."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.name = folder, name
        self.certificate, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        openssl(*new, "-subj", f"/CN={name}", "-keyout", str(self.key), "-out", str(self.certificate))

    def issue(self, host: str) -> tuple[Path, Path]:
        certificate, key = self.folder / f"{self.name}-{host}.pem", self.folder / f"{self.name}-{host}.key"
        openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", f"/CN={host}", "-addext", f"subjectAltName={alternative(host)}",
            "-addext", "basicConstraints=critical,CA:FALSE",
            "-CA", str(self.certificate), "-CAkey", str(self.key), "-keyout", str(key), "-out", str(certificate),
        )  # fmt: skip
        return certificate, key


def alternative(host: str) -> str:
    return f"IP:{host}" if host.replace(".", "").isdigit() else f"DNS:{host}"


def openssl(*arguments: str) -> None:
    subprocess.run([debian.program("openssl"), *arguments], check=True, capture_output=True)


class Stunnel(LocalServer):
    """A TLS listener that forwards to the server at the URL `to`."""

    name: ClassVar[str] = "stunnel"

    def __init__(self, root: Path, kept: KeptSettings, *, to: str, certificate: Path, key: Path) -> None:
        super().__init__(root, kept, durable=False)
        address = urlsplit(to)
        self.upstream = f"{address.hostname}:{address.port}"
        self.certificate, self.key = certificate, key

    def prepare(self) -> None:
        self.data.mkdir(exist_ok=True)
        text = CONFIGURATION.format(
            host=LOOPBACK, port=self.port, upstream=self.upstream, certificate=self.certificate, key=self.key
        )
        (self.data / "stunnel.conf").write_text(text)

    def new_process(self) -> Process:
        return Process(
            name=self.name, command=[debian.program("stunnel4"), str(self.data / "stunnel.conf")], folder=self.data,
            log=self.root / "logs" / "stunnel.log", environment=debian.environment(),
        )  # fmt: skip

    def is_ready(self) -> bool:
        return not is_free(self.port)
