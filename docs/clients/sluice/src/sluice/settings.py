"""The server's URL and the token: from the environment, or from a file that only its owner can read."""

import json
import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import httpx2

from sluice.errors import CliError, Exit

URL, TOKEN, INSECURE = "SLUICE_URL", "SLUICE_TOKEN", "SLUICE_INSECURE_HTTP"
SIGN_IN = "Sign in with: sluice login URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A server's URL and a token. `source` is the variable or file of the token."""

    url: str
    token: str
    source: str = ""


def path() -> Path:
    """Return the file: `$XDG_CONFIG_HOME/sluice/account.json`, or the same under `~/.config`."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "sluice" / "account.json"


def load() -> Account:
    """Return the account. Raises CliError if there is none.

    The environment takes precedence. The file's token belongs to the file's server: it is never sent elsewhere.
    """
    kept = read()
    url, token = os.environ.get(URL, "").strip(), os.environ.get(TOKEN, "").strip()
    insecure = os.environ.get(INSECURE) == "1"
    checked = checked_url(url, insecure=insecure) if url else kept.url
    if not checked:
        raise CliError(f"You are not signed in. {SIGN_IN}", code=Exit.FORBIDDEN)
    if token:
        return Account(url=checked, token=checked_token(token), source=TOKEN)
    if checked != kept.url or not kept.token:
        raise CliError(f"There is no token for {checked}. {SIGN_IN}, or set {TOKEN}.", code=Exit.FORBIDDEN)
    return Account(url=checked, token=checked_token(kept.token), source=str(path()))


def read() -> Account:
    """Return the content of the file, or an empty account if there is no file."""
    try:
        kept = json.loads(path().read_text())
        return Account(url=str(kept["url"]), token=str(kept["token"]))
    except FileNotFoundError:
        return Account(url="", token="")
    except (OSError, ValueError, TypeError, KeyError):
        raise CliError(f"{path()} cannot be read. {SIGN_IN}", code=Exit.FORBIDDEN) from None


def save(account: Account) -> Path:
    """Write the file atomically, so that other users can never read it."""
    target = path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = target.with_name(f"{target.name}.new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"url": account.url, "token": account.token}, file)
        new.replace(target)
    except OSError as error:
        raise CliError(f"{target} cannot be written: {error.strerror}.", code=Exit.USAGE) from None
    return target


def forget() -> bool:
    """Delete the file. Return whether it existed."""
    existed = path().exists()
    path().unlink(missing_ok=True)
    return existed


def checked_url(text: str, *, insecure: bool) -> str:
    """Return the server's URL without a trailing slash. Raises CliError if a token must not be sent there."""
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        url = httpx2.URL("")
    if url.scheme not in {"http", "https"} or not url.host or url.query or url.fragment or url.userinfo:
        raise CliError(f"Invalid server URL: {text!r}. Example: https://sluice.example", code=Exit.USAGE)
    if url.scheme == "http" and not is_loopback(url.host) and not insecure:
        raise CliError(
            "http:// sends the token unencrypted. Use https://,",
            f"or, in a network that you trust, `sluice login --insecure-http` or {INSECURE}=1.",
            code=Exit.USAGE,
        )
    return text.rstrip("/")


def checked_token(token: str) -> str:
    """Return the token. Raises CliError if it cannot be sent in a header; the message does not contain it."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise CliError(
            "Invalid token: it is empty or contains characters that tokens do not have.", code=Exit.FORBIDDEN
        )
    return token


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
