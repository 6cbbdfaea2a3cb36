"""The server's URL and the token: from the environment, or from the file that `sluice login` writes."""

import json
import os
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import httpx2

from sluice.errors import InsecureUrl, InvalidUrl, NotSignedIn

URL, TOKEN, INSECURE = "SLUICE_URL", "SLUICE_TOKEN", "SLUICE_INSECURE_HTTP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A server's URL and a token. `source`: the environment variable or the file that the token is from."""

    url: str
    token: str = field(repr=False)
    source: str = ""


def path() -> Path:
    """Return the path of the file: `$XDG_CONFIG_HOME/sluice/account.json`. The default folder is `~/.config`."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "sluice" / "account.json"


def load() -> Account:
    """Return the account. Raises NotSignedIn if there is none, and InvalidUrl.

    The environment takes precedence. The token in the file is only sent to the server in the file.
    """
    stored = read()
    url, token = os.environ.get(URL, "").strip(), os.environ.get(TOKEN, "").strip()
    insecure = os.environ.get(INSECURE) == "1"
    checked = checked_url(url, insecure=insecure) if url else stored.url
    if not checked:
        raise NotSignedIn("You are not signed in.")
    if token:
        return Account(url=checked, token=checked_token(token), source=TOKEN)
    if checked != stored.url or not stored.token:
        raise NotSignedIn(f"There is no token for {checked}.")
    return Account(url=checked, token=checked_token(stored.token), source=str(path()))


def read() -> Account:
    """Return the content of the file, or an empty account if there is no file."""
    try:
        stored = json.loads(path().read_text())
        return Account(url=str(stored["url"]), token=str(stored["token"]))
    except FileNotFoundError:
        return Account(url="", token="")
    except (OSError, ValueError, TypeError, KeyError):
        raise NotSignedIn(f"{path()} cannot be read.") from None


def checked_url(text: str, *, insecure: bool) -> str:
    """Return the server's URL without a trailing slash. Raises InvalidUrl, and InsecureUrl for http://."""
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        url = httpx2.URL("")
    if url.scheme not in {"http", "https"} or not url.host or url.query or url.fragment or url.userinfo:
        raise InvalidUrl(f"Invalid server URL: {text!r}. Example: https://sluice.example")
    if url.scheme == "http" and not is_loopback(url.host) and not insecure:
        raise InsecureUrl("http:// sends the token unencrypted. Use https://.")
    return text.rstrip("/")


def checked_token(token: str) -> str:
    """Return the token. Raises NotSignedIn if it cannot be sent in a header; the message does not contain it."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise NotSignedIn("Invalid token: it is empty or contains characters that tokens do not have.")
    return token


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
