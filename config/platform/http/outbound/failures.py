"""Log fields for servers that cannot be reached: no paths, no credentials, no messages, which may quote either."""

import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from config.platform.observability import logs

MAX_CHAIN = 8
PORTS = {"http": 80, "https": 443}
LOOKUP_ERRORS = {value: name for name, value in vars(socket).items() if name.startswith("EAI_")}


def log_fields(error: BaseException, *, url: str) -> dict[str, str]:
    """Return the host and the kind of failure: `{"host": "ocr.example:8000", "error": "httpx2.ConnectError",
    "cause": "ConnectionRefusedError (ECONNREFUSED)"}`."""
    system_error = next((link for link in chain(error) if isinstance(link, OSError)), None)
    cause = {"cause": describe(system_error)} if system_error else {}
    return {"host": host_and_port(url), "error": logs.describe(error), **cause}


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, including those that a library hid with "from None"."""
    link: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def describe(error: OSError) -> str:
    """Return the class and the symbolic name. The numbers of DNS and TLS errors are not errno's."""
    name = type(error).__name__
    if isinstance(error, ssl.SSLError):
        return f"{name} ({error.reason})" if error.reason else name
    if isinstance(error, socket.gaierror):
        return f"{name} ({LOOKUP_ERRORS.get(error.errno or 0, error.errno)})"
    return logs.describe(error)


def host_and_port(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or PORTS.get(parts.scheme, '')}"
