"""Sign-in with the local OpenID provider, and changes of its users and groups."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from django.conf import LazySettings
from django.test import Client
from pydantic import SecretStr

from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.openid_provider import OpenIDProvider

CSRF = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')


@contextmanager
def running_provider(root: Path) -> Iterator[OpenIDProvider]:
    """Run the provider in a separate process."""
    provider = OpenIDProvider(root, KeptSettings(root), durable=False)
    provider.start()
    try:
        yield provider
    finally:
        provider.stop()


def configure(settings: LazySettings, provider: OpenIDProvider, **more: Any) -> None:
    """Configure this process to use the provider."""
    values = {name.lower(): value for name, value in provider.variables().items()}
    groups = {name: value.split(",") for name, value in values.items() if name.endswith("_groups")}
    secret = {"oidc_client_secret": SecretStr(values["oidc_client_secret"])}
    settings.SLUICE = settings.SLUICE.model_copy(update={**values, **groups, **secret, **more})


def callback_of(start: str, name: str) -> str:
    """Sign in at the provider's authorization URL, and return the URL to which it redirects."""
    with requests.Session() as browser:
        page = browser.get(start, timeout=10)
        token = CSRF.search(page.text)
        assert token, page.text
        form = {"username": name, "password": name, "csrfmiddlewaretoken": token[1]}
        answer = browser.post(page.url, form, allow_redirects=False, timeout=10)
        answer = browser.get(f"{origin(start)}{answer.headers['Location']}", allow_redirects=False, timeout=10)
        return answer.headers["Location"]


def origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def sign_in(client: Client, name: str, *, page: str = "") -> Any:
    """Sign in with single sign-on, and return the response to the provider's redirect."""
    start: Any = client.get("/app/sign-in/sso", {"next": page})
    assert start.status_code == 302, start.content
    return path_of(client, callback_of(start["Location"], name))


def path_of(client: Client, url: str) -> Any:
    parts = urlsplit(url)
    assert parts.hostname == "testserver"
    return client.get(f"{parts.path}?{parts.query}")


def change(provider: OpenIDProvider, statement: str, *values: object) -> None:
    """Change the provider's database."""
    with closing(sqlite3.connect(provider.database, timeout=30)) as database, database:
        database.execute(statement, values)


def set_groups(provider: OpenIDProvider, name: str, *groups: str) -> None:
    change(provider, f"DELETE FROM auth_user_groups WHERE {OF_USER}", name)
    for group in groups:
        change(provider, "INSERT OR IGNORE INTO auth_group (name) VALUES (?)", group)
        change(
            provider,
            "INSERT INTO auth_user_groups (user_id, group_id)"
            " SELECT u.id, g.id FROM auth_user u, auth_group g WHERE u.username = ? AND g.name = ?",
            name,
            group,
        )


OF_USER = "user_id = (SELECT id FROM auth_user WHERE username = ?)"
