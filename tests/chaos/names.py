"""A DNS whose answers a test writes, for the processes that it starts: names that end in `.example`.

Each name is a file with a line for each look at it: the addresses of that answer, with spaces between. The last line
stays. Who looked, and what they were told, is in the file `asked`.
"""

import fcntl
import os
import socket
from pathlib import Path
from typing import Any

FOLDER = "CHAOS_NAMES"  # the variable that names it
OURS = ".example"


class Names:
    """The folder, as a test sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def answer(self, name: str, *answers: str) -> None:
        """Give these answers from now on, one a look; the last one for ever."""
        assert name.endswith(OURS)
        file = self.folder / f"{name}.new"
        file.write_text("".join(f"{answer}\n" for answer in answers))
        file.rename(self.folder / name)

    def asked(self, name: str) -> list[str]:
        """Return the answers that were given for a name, in order."""
        file = self.folder / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.removeprefix(f"{name}: ") for line in lines if line.startswith(f"{name}: ")]


def install() -> None:
    """Have this process ask the folder."""
    folder, real = Path(os.environ[FOLDER]), socket.getaddrinfo

    def look(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if not isinstance(name, str) or not name.endswith(OURS):
            return real(host, port, *arguments, **options)
        addresses = taken(folder, name).split()
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [found for address in addresses for found in real(address, port, *arguments, **options)]

    socket.getaddrinfo = look


def taken(folder: Path, name: str) -> str:
    with (folder / "asked").open("a") as asked:
        fcntl.flock(asked, fcntl.LOCK_EX)
        file = folder / name
        first, *others = file.read_text().splitlines() if file.exists() else [""]
        if others:
            file.write_text("".join(f"{line}\n" for line in others))
        asked.write(f"{name}: {first}\n")
    return first
