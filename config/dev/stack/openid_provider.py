"""The local OpenID provider, as a server of the stack. Its users have their names as passwords."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from config.dev.stack.kept_settings import write_private
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process
from config.dev.stack.processes import responds
from config.dev.stack.server import LocalServer

CLIENT_ID = "sluice"
USERS: Mapping[str, tuple[str, ...]] = {
    "ada": ("sluice-admins", "finance"),
    "grace": ("sluice-staff",),
    "joan": ("finance",),
}


class OpenIDProvider(LocalServer):
    """The provider on a free port. Its SQLite file in `data` contains its users and groups."""

    name: ClassVar[str] = "provider"

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def database(self) -> Path:
        return self.data / "provider.sqlite3"

    def prepare(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        if not (file := self.data / "key.pem").exists():
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            write_private(file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode())

    def new_process(self) -> Process:
        variables = {
            "DJANGO_SETTINGS_MODULE": "config.dev.openid_provider.settings",
            "PROVIDER_FOLDER": str(self.data),
            "ISSUER": self.url,
            "CLIENT_SECRET": self.secret,
            "OAUTHLIB_INSECURE_TRANSPORT": "1",  # it has no HTTPS
        }
        return Process(
            name=self.name,
            command=[sys.executable, "-m", "config.dev.openid_provider", str(self.port)],
            log=self.root / "logs" / f"{self.name}.log",
            environment={**self.environment(), **variables},
        )

    def is_ready(self) -> bool:
        return responds(self.port, "/.well-known/openid-configuration")

    @property
    def secret(self) -> str:
        return self.kept.secret("openid_client")

    def variables(self) -> dict[str, str]:
        """Return Sluice's settings for this provider."""
        return {
            "OIDC_ISSUER": self.url,
            "OIDC_CLIENT_ID": CLIENT_ID,
            "OIDC_CLIENT_SECRET": self.secret,
            "OIDC_STAFF_GROUPS": "sluice-staff",
            "OIDC_ADMIN_GROUPS": "sluice-admins",
        }
