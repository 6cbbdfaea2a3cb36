"""Scripted DNS for the processes of a test. It resolves names that end in `.example`.

Each name has a file with one line per lookup: the addresses in the response, separated by spaces. The last line applies
to all later lookups. The file `lookups` records lookups and responses.
"""

import fcntl
import os
import socket
from pathlib import Path
from typing import Any

FOLDER = "CHAOS_NAMES"  # the environment variable with the folder
SUFFIX = ".example"


class Names:
    """The folder of names, as used by the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def set_responses(self, name: str, *responses: str) -> None:
        """Set the responses to the next lookups, one each. The last one applies to all later lookups."""
        assert name.endswith(SUFFIX)
        file = self.folder / f"{name}.new"
        file.write_text("".join(f"{response}\n" for response in responses))
        file.rename(self.folder / name)

    def lookups(self, name: str) -> list[str]:
        """Return the responses to the lookups of a name, in order."""
        file = self.folder / "lookups"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.removeprefix(f"{name}: ") for line in lines if line.startswith(f"{name}: ")]


def install() -> None:
    """Resolve names from the folder in this process."""
    folder, real = Path(os.environ[FOLDER]), socket.getaddrinfo

    def resolve(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if not isinstance(name, str) or not name.endswith(SUFFIX):
            return real(host, port, *arguments, **options)
        addresses = take_response(folder, name).split()
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [found for address in addresses for found in real(address, port, *arguments, **options)]

    socket.getaddrinfo = resolve


def take_response(folder: Path, name: str) -> str:
    with (folder / "lookups").open("a") as lookups:
        fcntl.flock(lookups, fcntl.LOCK_EX)
        file = folder / name
        first, *others = file.read_text().splitlines() if file.exists() else [""]
        if others:
            file.write_text("".join(f"{line}\n" for line in others))
        lookups.write(f"{name}: {first}\n")
    return first
