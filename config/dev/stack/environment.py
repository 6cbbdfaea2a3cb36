"""The environment of Sluice's processes, also written to `.local/stack.env`."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from config.dev.stack.kept_settings import write_private
from config.dev.stack.servers import Servers
from config.env import FILE_SUFFIX, Environment

FILE = "stack.env"


def defaults(servers: Servers) -> dict[str, str]:
    """Return the variables that the stack sets for its processes."""
    return {
        **servers.environment(),
        "SECRET_KEY": servers.kept.secret("secret_key"),
        "ALLOWED_HOSTS": "127.0.0.1,localhost",
        "DEBUG": "true",  # plain http: with secure cookies, sign-in would fail
        "PROMETHEUS_MULTIPROC_DIR": str(servers.root / "metrics"),
        "ETL_CACHE_DIR": str(servers.root / "documents"),
        "DJANGO_SETTINGS_MODULE": "config.settings",
    }


def effective(defaults: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the processes: the shell's variables take precedence over the stack's defaults."""
    known = Environment.names()
    from_shell = {name: value for name, value in given.items() if name in known or name in defaults}
    # If the shell names a file with the secret, such as SECRET_KEY_FILE, the default is left out: only one may be set.
    return {name: value for name, value in defaults.items() if not from_shell.get(f"{name}{FILE_SUFFIX}")} | from_shell


def of_processes(root: Path, defaults: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the complete environment of the processes. Of a killed worker, temporary files remain in `root`."""
    return {"TMPDIR": str(root / "tmp"), **given, **effective(defaults, given)}


def write(path: Path, variables: Mapping[str, str]) -> None:
    """Write `KEY=value` lines for a shell."""
    write_private(path, "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()))
