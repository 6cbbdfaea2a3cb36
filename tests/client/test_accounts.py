"""Signing in with the command line, and whom the token is sent to. C3."""

import os
import pty
import stat
from pathlib import Path

import pytest

from tests.client.conftest import Cli
from tests.client.gate import Gate
from tests.waiting import wait_until

UNKNOWN = "slc_unknown"


@pytest.fixture
def stranger(sluice: Cli) -> Cli:
    """The command line of somebody who is not signed in, and the token that would do."""
    return Cli(url="", token="", folder=sluice.folder)


def kept(cli: Cli) -> Path:
    return cli.folder / "config" / "sluice" / "account.json"


def test_signing_in_keeps_the_token_for_its_owner_alone(stranger: Cli, token: str, door: Gate) -> None:
    """C3."""
    assert "sluice login URL" in stranger("limits", code=3).err
    ran = stranger("login", f"{door.url}/", "--token-stdin", stdin=f"{token}\n")

    assert token not in ran.err + ran.text
    assert stat.S_IMODE(kept(stranger).stat().st_mode) == 0o600
    assert stat.S_IMODE(kept(stranger).parent.stat().st_mode) == 0o700
    assert list(kept(stranger).parent.iterdir()) == [kept(stranger)]
    assert "chunks" in stranger("limits").text
    assert str(kept(stranger)) in stranger("whoami").text
    stranger("logout")
    assert not kept(stranger).exists()
    stranger("whoami", code=3)


def test_the_token_is_asked_for_without_an_echo(stranger: Cli, token: str, door: Gate) -> None:
    ours, theirs = pty.openpty()
    # A terminal of its own: the prompt opens the controlling one, which a test has not.
    process = stranger.start("login", door.url, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""
    while b"Token: " not in shown:  # what is typed before the echo is off is thrown away
        shown += os.read(ours, 1000)
    os.write(ours, f"{token}\n".encode())
    assert process.wait(timeout=60) == 0
    shown += read_all(ours)
    assert token.encode() not in shown
    assert b"Signed in" in shown
    assert kept(stranger).exists()


def read_all(terminal: int) -> bytes:
    told = b""
    try:
        while block := os.read(terminal, 1000):
            told += block
    except OSError:  # EIO: nobody has the other end any more
        pass
    os.close(terminal)
    return told


def test_a_token_that_the_server_does_not_take_is_not_kept(stranger: Cli, token: str, door: Gate) -> None:
    ran = stranger("login", door.url, "--token-stdin", stdin=UNKNOWN, code=3)
    assert "authentication_failed" in ran.err
    assert not kept(stranger).exists()
    for nonsense in ("", "two words", "slc_ü", "slc_\x07"):
        stranger("login", door.url, "--token-stdin", stdin=nonsense, code=3)
    assert len(door.seen) == 1


def test_the_environment_wins_over_the_file(stranger: Cli, token: str, door: Gate) -> None:
    stranger("login", door.url, "--token-stdin", stdin=token)
    stranger.more = {"SLUICE_TOKEN": UNKNOWN}
    stranger("whoami", code=3)
    assert door.seen[-1].headers["authorization"] == f"Bearer {UNKNOWN}"


def test_a_kept_token_goes_to_no_other_server(stranger: Cli, token: str, door: Gate, store: Gate) -> None:
    stranger("login", door.url, "--token-stdin", stdin=token)
    stranger.more = {"SLUICE_URL": store.url}
    assert "There is no token" in stranger("whoami", code=3).err
    assert store.seen == []


def test_the_token_follows_no_redirect(sluice: Cli, door: Gate, store: Gate) -> None:
    door.trouble("GET", "/limits", lambda handler, _: handler.answer(302, [("Location", f"{store.url}/x")], b""))
    assert store.url in sluice("limits", code=1).err
    assert store.seen == []


def test_tokens_are_not_sent_in_the_open(stranger: Cli, token: str) -> None:
    assert "--insecure-http" in stranger("login", "http://sluice.example", "--token-stdin", stdin=token, code=2).err
    stranger.more = {"SLUICE_URL": "http://sluice.example", "SLUICE_TOKEN": token}
    assert "SLUICE_INSECURE_HTTP=1" in stranger("limits", code=2).err
    for nonsense in ("sluice.example", "ftp://sluice.example", "https://me:secret@sluice.example", ""):
        stranger.more = {}
        stranger("login", nonsense, "--token-stdin", stdin=token, code=2)


def test_another_web_site_is_not_taken_for_a_server(stranger: Cli, token: str, door: Gate) -> None:
    page = [("Content-Type", "text/html")]
    door.trouble("GET", "/limits", lambda handler, _: handler.answer(200, page, b"<h1>Welcome</h1>"))
    assert "not the address of a Sluice server" in stranger("login", door.url, "--token-stdin", stdin=token, code=1).err
    assert not kept(stranger).exists()


def test_debug_tells_what_was_asked_and_not_the_token(sluice: Cli) -> None:
    """The runner looks for the token in every output."""
    assert "GET /exports/limits 200" in sluice("limits", "--debug").err


def test_a_server_that_is_away_is_told_in_a_line(sluice: Cli, web_gate: Gate) -> None:
    sluice.url = "http://127.0.0.1:9"
    ran = sluice("limits", "--patience", "0", code=10)
    assert ran.err == "Error: http://127.0.0.1:9 cannot be reached: Connection refused.\n"


def test_a_reader_that_has_enough_is_no_error(sluice: Cli) -> None:
    process = sluice.start("--help")
    assert process.stdout
    process.stdout.close()
    wait_until(lambda: process.poll() is not None)
    assert process.stderr
    assert process.stderr.read() == b""
    process.stderr.close()
