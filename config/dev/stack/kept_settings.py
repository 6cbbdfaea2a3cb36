"""Passwords and ports that a stack keeps between its runs, in a file of mode 600."""

import json
import os
import secrets
from pathlib import Path
from threading import Lock

from config.dev.stack import ports


class KeptSettings:
    """Passwords and ports by name, generated at the first use. Thread-safe, because servers start in parallel."""

    def __init__(self, root: Path) -> None:
        self.path = root / "identity.json"
        self.lock = Lock()
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.secrets: dict[str, str] = known.get("secrets", {})
        self.ports: dict[str, list[int]] = known.get("ports", {})

    def secret(self, name: str) -> str:
        """Return a random string of 40 hex digits, which needs no escaping in URLs, shells, and configuration files."""
        with self.lock:
            if name not in self.secrets:
                self.secrets[name] = secrets.token_hex(20)
                self.save()
            return self.secrets[name]

    def free_ports(self, name: str, count: int) -> list[int]:
        """Return the ports of the last run if all are free, otherwise others.

        With the same ports, bookmarks and shells that have loaded `stack.env` keep working.
        """
        with self.lock:
            kept = self.ports.get(name, [])
            if len(kept) != count or not all(map(ports.is_free, kept)):
                self.ports[name] = ports.free(count)
                self.save()
            return self.ports[name]

    def save(self) -> None:
        write_private(self.path, json.dumps({"secrets": self.secrets, "ports": self.ports}, indent=1))


def write_private(path: Path, text: str) -> None:
    """Replace the file atomically. Other users can never read it."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
