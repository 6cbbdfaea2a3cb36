"""Log fields for unreachable servers, without paths and credentials, and without messages that may quote them."""

import socket
import ssl
from urllib.parse import urlsplit

from config.platform.observability import logs

PORTS = {"http": 80, "https": 443}
LOOKUP_ERRORS = {value: name for name, value in vars(socket).items() if name.startswith("EAI_")}


def log_fields(error: BaseException, *, url: str) -> dict[str, str]:
    """Return the host and the kind of failure.

    Example: `{"host": "ocr.example:8000", "error": "httpx2.ConnectError",
    "cause": "ConnectionRefusedError (ECONNREFUSED)"}`.
    """
    system_error = next((link for link in logs.chain_of(error, hidden=True) if isinstance(link, OSError)), None)
    cause = {"cause": describe(system_error)} if system_error else {}
    return {"host": host_and_port(url), "error": logs.describe(error), **cause}


def describe(error: OSError) -> str:
    """Return the class and the symbolic name of an error.

    The numbers of DNS and TLS errors are not system error numbers.
    """
    name = type(error).__name__
    if isinstance(error, ssl.SSLError):
        return f"{name} ({error.reason})" if error.reason else name
    if isinstance(error, socket.gaierror):
        return f"{name} ({LOOKUP_ERRORS.get(error.errno or 0, error.errno)})"
    return logs.describe(error)


def host_and_port(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or PORTS.get(parts.scheme, '')}"
