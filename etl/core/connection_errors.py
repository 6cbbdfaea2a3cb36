"""What may be said in a log of servers that the operator has named and that cannot be reached."""

import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from config.platform.observability import logs

MAX_CHAIN = 8
PORTS = {"http": 80, "https": 443}
LOOKUPS = {value: name for name, value in vars(socket).items() if name.startswith("EAI_")}


def facts_of(error: BaseException, *, url: str) -> dict[str, str]:
    """Return where it was tried, and what kind of failure it is: `{"host": "ocr.example:8000", "error":
    "httpx2.ConnectError", "cause": "ConnectionRefusedError (ECONNREFUSED)"}`. No path, no credentials, no messages."""
    own = next((link for link in chain_of(error) if isinstance(link, OSError)), None)
    cause = {"cause": kind_of(own)} if own else {}
    return {"host": host_of(url), "error": logs.describe(error), **cause}


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield what led to an exception, also where a library has raised its own "from None"."""
    link: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def kind_of(error: OSError) -> str:
    """Return the class and the system's name for it. The numbers of names and of TLS are none of errno's."""
    name = type(error).__name__
    if isinstance(error, ssl.SSLError):
        return f"{name} ({error.reason})" if error.reason else name
    if isinstance(error, socket.gaierror):
        return f"{name} ({LOOKUPS.get(error.errno or 0, error.errno)})"
    return logs.describe(error)


def host_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or PORTS.get(parts.scheme, '')}"
