"""Scripted DNS for the processes of a test: names that end in `.example`.

Each name is a file with one line per lookup: the addresses of that response, separated by spaces. The last line
applies to all later lookups. The file `lookups` records lookups and responses.
"""

import fcntl
import os
import socket
from pathlib import Path
from typing import Any

FOLDER = "CHAOS_NAMES"  # the environment variable with the folder
OURS = ".example"


class Names:
    """The folder, for the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def answer(self, name: str, *answers: str) -> None:
        """Set the responses from now on, one per lookup. The last one applies to all later lookups."""
        assert name.endswith(OURS)
        file = self.folder / f"{name}.new"
        file.write_text("".join(f"{answer}\n" for answer in answers))
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
        if not isinstance(name, str) or not name.endswith(OURS):
            return real(host, port, *arguments, **options)
        addresses = taken(folder, name).split()
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [found for address in addresses for found in real(address, port, *arguments, **options)]

    socket.getaddrinfo = resolve


def taken(folder: Path, name: str) -> str:
    with (folder / "lookups").open("a") as lookups:
        fcntl.flock(lookups, fcntl.LOCK_EX)
        file = folder / name
        first, *others = file.read_text().splitlines() if file.exists() else [""]
        if others:
            file.write_text("".join(f"{line}\n" for line in others))
        lookups.write(f"{name}: {first}\n")
    return first
