"""The environment of Sluice's processes, also written to `.local/stack.env`."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from config.dev.stack.kept_settings import write_private
from config.dev.stack.servers import Servers
from config.env import FILE_SUFFIX, Environment

FILE = "stack.env"


def own(servers: Servers) -> dict[str, str]:
    """Return the stack's own variables for the processes."""
    return {
        **servers.environment(),
        "SECRET_KEY": servers.kept.secret("secret_key"),
        "ALLOWED_HOSTS": "127.0.0.1,localhost",
        "DEBUG": "true",  # plain http: with secure cookies, sign-in would fail
        "PROMETHEUS_MULTIPROC_DIR": str(servers.root / "metrics"),
        "ETL_CACHE_DIR": str(servers.root / "documents"),
        "DJANGO_SETTINGS_MODULE": "config.settings",
    }


def effective(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the processes: those of the shell take precedence over the stack's own."""
    known = Environment.names()
    from_shell = {name: value for name, value in given.items() if name in known or name in own}
    # A secret from a file in the shell's environment is not set again.
    return {name: value for name, value in own.items() if not from_shell.get(f"{name}{FILE_SUFFIX}")} | from_shell


def write(path: Path, variables: Mapping[str, str]) -> None:
    """Write `KEY=value` lines for a shell."""
    write_private(path, "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()))
