"""Sign-in with the command line, and protection of the token. C3."""

import os
import pty
import stat
from pathlib import Path

import pytest

from tests.client.conftest import Cli, read_all
from tests.client.fault_proxy import FaultProxy
from tests.waiting import wait_until

UNKNOWN = "slc_unknown"


@pytest.fixture
def signed_out(sluice: Cli) -> Cli:
    """The command line of a user who is not signed in."""
    return Cli(url="", token="", folder=sluice.folder)


def token_file(cli: Cli) -> Path:
    return cli.folder / "config" / "sluice" / "account.json"


def test_signing_in_stores_the_token_readable_by_its_owner_only(
    signed_out: Cli, token: str, api_proxy: FaultProxy
) -> None:
    """C3."""
    assert "sluice login URL" in signed_out("limits", code=3).err
    ran = signed_out("login", f"{api_proxy.url}/", "--token-stdin", stdin=f"{token}\n")

    assert token not in ran.err + ran.text
    assert stat.S_IMODE(token_file(signed_out).stat().st_mode) == 0o600
    assert stat.S_IMODE(token_file(signed_out).parent.stat().st_mode) == 0o700
    assert list(token_file(signed_out).parent.iterdir()) == [token_file(signed_out)]
    assert "chunks" in signed_out("limits").text
    assert str(token_file(signed_out)) in signed_out("whoami").text
    signed_out("logout")
    assert not token_file(signed_out).exists()
    signed_out("whoami", code=3)


def test_the_token_prompt_does_not_echo(signed_out: Cli, token: str, api_proxy: FaultProxy) -> None:
    controller, terminal = pty.openpty()
    # A new session gets the pseudo-terminal as its controlling terminal, which the prompt opens.
    process = signed_out.start(
        "login", api_proxy.url, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    shown = b""
    while b"Token: " not in shown:  # input before echo is turned off is discarded
        shown += os.read(controller, 1000)
    os.write(controller, f"{token}\n".encode())
    assert process.wait(timeout=60) == 0
    shown += read_all(controller)
    assert token.encode() not in shown
    assert b"Signed in" in shown
    assert token_file(signed_out).exists()


def test_a_rejected_token_is_not_stored(signed_out: Cli, api_proxy: FaultProxy) -> None:
    ran = signed_out("login", api_proxy.url, "--token-stdin", stdin=UNKNOWN, code=3)
    assert "authentication_failed" in ran.err
    assert not token_file(signed_out).exists()
    for nonsense in ("", "two words", "slc_ü", "slc_\x07"):
        signed_out("login", api_proxy.url, "--token-stdin", stdin=nonsense, code=3)
    assert len(api_proxy.seen) == 1


def test_the_environment_overrides_the_file(signed_out: Cli, token: str, api_proxy: FaultProxy) -> None:
    signed_out("login", api_proxy.url, "--token-stdin", stdin=token)
    signed_out.variables = {"SLUICE_TOKEN": UNKNOWN}
    signed_out("whoami", code=3)
    assert api_proxy.seen[-1].headers["authorization"] == f"Bearer {UNKNOWN}"


def test_a_stored_token_is_not_sent_to_another_server(
    signed_out: Cli, token: str, api_proxy: FaultProxy, storage_proxy: FaultProxy
) -> None:
    signed_out("login", api_proxy.url, "--token-stdin", stdin=token)
    signed_out.variables = {"SLUICE_URL": storage_proxy.url}
    assert "There is no token" in signed_out("whoami", code=3).err
    assert storage_proxy.seen == []


def test_the_token_is_not_sent_after_a_redirect(sluice: Cli, api_proxy: FaultProxy, storage_proxy: FaultProxy) -> None:
    api_proxy.inject(
        "GET", "/limits", lambda handler, _: handler.answer(302, [("Location", f"{storage_proxy.url}/x")], b"")
    )
    assert storage_proxy.url in sluice("limits", code=1).err
    assert storage_proxy.seen == []


def test_tokens_are_not_sent_over_plain_http(signed_out: Cli, token: str) -> None:
    assert "--insecure-http" in signed_out("login", "http://sluice.example", "--token-stdin", stdin=token, code=2).err
    signed_out.variables = {"SLUICE_URL": "http://sluice.example", "SLUICE_TOKEN": token}
    assert "SLUICE_INSECURE_HTTP=1" in signed_out("limits", code=2).err
    for nonsense in ("sluice.example", "ftp://sluice.example", "https://me:secret@sluice.example", ""):
        signed_out.variables = {}
        signed_out("login", nonsense, "--token-stdin", stdin=token, code=2)


def test_another_web_site_is_not_accepted_as_a_server(signed_out: Cli, token: str, api_proxy: FaultProxy) -> None:
    page = [("Content-Type", "text/html")]
    api_proxy.inject("GET", "/limits", lambda handler, _: handler.answer(200, page, b"<h1>Welcome</h1>"))
    assert (
        "not the address of a Sluice server"
        in signed_out("login", api_proxy.url, "--token-stdin", stdin=token, code=1).err
    )
    assert not token_file(signed_out).exists()


def test_debug_output_shows_requests_without_the_token(sluice: Cli) -> None:
    """`Cli` asserts that no output contains the token."""
    assert "GET /exports/limits 200" in sluice("limits", "--debug").err


def test_an_unreachable_server_is_reported_in_one_line(sluice: Cli) -> None:
    sluice.url = "http://127.0.0.1:9"
    ran = sluice("limits", "--patience", "0", code=10)
    assert ran.err == "Error: http://127.0.0.1:9 cannot be reached: Connection refused.\n"


def test_a_closed_output_pipe_is_no_error(sluice: Cli) -> None:
    process = sluice.start("--help")
    assert process.stdout
    process.stdout.close()
    wait_until(lambda: process.poll() is not None)
    assert process.stderr
    assert process.stderr.read() == b""
    process.stderr.close()
