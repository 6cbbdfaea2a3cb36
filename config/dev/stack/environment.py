"""The environment of Sluice's processes, and `.local/stack.env`, which tells people and programs about it."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from config.dev.stack.identity import write_private
from config.dev.stack.servers import Servers
from config.env import IN_FILE, Environment

FILE = "stack.env"


def own(servers: Servers) -> dict[str, str]:
    """Return the stack's own variables for the processes."""
    return {
        **servers.environment(),
        "SECRET_KEY": servers.identity.secret("secret_key"),
        "ALLOWED_HOSTS": "127.0.0.1,localhost",
        "DEBUG": "true",  # plain http: cookies that want https would make it impossible to log in
        "PROMETHEUS_MULTIPROC_DIR": str(servers.root / "metrics"),
        "ETL_CACHE_DIR": str(servers.root / "documents"),
        "DJANGO_SETTINGS_MODULE": "config.settings",
    }


def effective(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as the processes see them: the shell's where it has one, also those we have no value for."""
    known = Environment.names()
    theirs = {name: value for name, value in given.items() if name in known or name in own}
    # A secret that they have in a file is not set a second time by us.
    return {name: value for name, value in own.items() if not theirs.get(f"{name}{IN_FILE}")} | theirs


def write(path: Path, variables: Mapping[str, str]) -> None:
    """Write `KEY=value` lines that a shell can read, and that need no quotes unless a path has a space."""
    write_private(path, "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()))
