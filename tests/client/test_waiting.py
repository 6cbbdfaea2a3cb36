"""Waiting for exports with the command line, also during connection and server failures. C3."""

import os
import pty
import signal
import subprocess
import time

import pytest
from django.contrib.auth.models import User
from knox.models import AuthToken

from config.dev.stack.processes import Web
from exports.jobs import actions
from exports.models import Dataset, Job
from tests.client.conftest import Cli, read_all
from tests.client.fault_proxy import FaultProxy, cut_after, cut_before, problem
from tests.integration.factories import end_chunk, fail_chunk, finish, make_job
from tests.waiting import expect_within, wait_until


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Wait for a started command, and return its exit code and its output."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out.decode(), err.decode()


@pytest.mark.slow
def test_it_reports_progress_and_the_outcome(dataset: Dataset, alice: User, sluice: Cli, api_proxy: FaultProxy) -> None:
    """C3."""
    job = make_job(dataset, alice, 3)
    waiting = sluice.start("export", "wait", job.pk)
    wait_until(api_proxy.streams)
    end_chunk()
    fail_chunk()
    end_chunk()
    code, out, err = ended(waiting)
    assert (code, out) == (7, "")
    assert "Failed: JFK 2024-02-29: The source database raised an error [" in err
    assert "Error: The export failed: " in err
    assert f"sluice export chunks {job.pk} --status failed" in err
    assert len(api_proxy.requests_to("GET", "/events")) == 1


def test_exit_codes_reflect_the_outcome(dataset: Dataset, alice: User, done: Job, sluice: Cli) -> None:
    assert sluice("export", "wait", done.pk, "--json").json["status"] == "success"
    job = make_job(dataset, alice, 1, key="LGA")
    actions.cancel(job)
    assert sluice("export", "wait", job.pk, "--json", code=8).json["status"] == "cancelled"


@pytest.mark.slow
def test_a_broken_stream_resumes(dataset: Dataset, alice: User, sluice: Cli, api_proxy: FaultProxy) -> None:
    """C3: the stream breaks before the event of the first chunk."""
    job = make_job(dataset, alice, 2)
    api_proxy.inject("GET", "/events", cut_before(b"event: chunk"))
    waiting = sluice.start("export", "wait", job.pk)
    wait_until(api_proxy.streams)
    fail_chunk()
    wait_until(lambda: len(api_proxy.requests_to("GET", "/events")) == 2)
    fail_chunk()
    code, _, err = ended(waiting)

    assert code == 7
    first, second = api_proxy.requests_to("GET", "/events")
    assert "last-event-id" not in first.headers
    assert int(second.headers["last-event-id"]) > 0
    assert err.count("Failed: JFK 2024-02-28") == 1
    assert err.count("Failed: JFK 2024-02-29") == 1


@pytest.mark.slow
def test_it_polls_when_streams_are_unavailable(
    dataset: Dataset, alice: User, sluice: Cli, api_proxy: FaultProxy
) -> None:
    """C3."""
    job = make_job(dataset, alice, 1)
    api_proxy.inject("GET", "/events", problem(429, "too_many_streams", retry_after=30), times=9)
    waiting = sluice.start("export", "wait", job.pk, "--json")
    wait_until(lambda: len(api_proxy.requests_to("GET", str(job.pk))) >= 4)
    finish(job)
    code, out, _ = ended(waiting)
    assert code == 0
    assert '"status": "success"' in out
    assert len(api_proxy.requests_to("GET", "/events")) == 1


@pytest.mark.slow
def test_it_polls_when_streams_end_at_once(dataset: Dataset, alice: User, sluice: Cli, api_proxy: FaultProxy) -> None:
    job = make_job(dataset, alice, 1)
    api_proxy.inject("GET", "/events", cut_after(0), times=9)
    waiting = sluice.start("export", "wait", job.pk)
    wait_until(lambda: len(api_proxy.requests_to("GET", str(job.pk))) >= 6)
    finish(job)
    assert ended(waiting)[0] == 0
    assert len(api_proxy.requests_to("GET", "/events")) == 2


@pytest.mark.slow
def test_it_survives_a_server_restart(
    dataset: Dataset, alice: User, sluice: Cli, api_proxy: FaultProxy, web: Web
) -> None:
    """C3."""
    job = make_job(dataset, alice, 2)
    waiting = sluice.start("export", "wait", job.pk)
    wait_until(api_proxy.streams)
    web.restart()
    finish(job)
    code, _, err = ended(waiting)
    assert (code, "Export ready: 2 chunks" in err) == (0, True)


@pytest.mark.slow
def test_it_waits_for_a_busy_server(done: Job, sluice: Cli, api_proxy: FaultProxy) -> None:
    api_proxy.inject("GET", str(done.pk), problem(503, "database_unavailable", retry_after=1))
    api_proxy.inject("GET", str(done.pk), problem(429, "rate_limited", retry_after=1))
    began = time.monotonic()
    sluice("export", "wait", done.pk)
    assert time.monotonic() - began > 2


@pytest.mark.slow
def test_it_waits_no_longer_than_the_given_limit(dataset: Dataset, alice: User, sluice: Cli) -> None:
    """C3."""
    job = make_job(dataset, alice, 1)

    def wait() -> None:
        began = time.monotonic()
        ran = sluice("export", "wait", job.pk, "--timeout", "1.5", code=9)
        assert time.monotonic() - began >= 1.5
        assert ran.err.endswith(f"Error: Not finished after 1.5 s. Resume waiting with: sluice export wait {job.pk}\n")

    expect_within(4, wait)
    sluice.url = "http://127.0.0.1:9"
    sluice("export", "wait", job.pk, "--timeout", "1", code=9)


def test_ctrl_c_stops_waiting_only(dataset: Dataset, alice: User, sluice: Cli, api_proxy: FaultProxy) -> None:
    """C3."""
    job = make_job(dataset, alice, 1)
    waiting = sluice.start("export", "wait", job.pk)
    wait_until(api_proxy.streams)
    waiting.send_signal(signal.SIGINT)
    code, _, err = ended(waiting)
    assert code == 130
    assert err.endswith(f"Interrupted. Resume waiting with: sluice export wait {job.pk}\n")
    job.refresh_from_db()
    assert job.status == "pending"


@pytest.mark.slow
def test_a_revoked_token_ends_the_wait(dataset: Dataset, alice: User, sluice: Cli, api_proxy: FaultProxy) -> None:
    job = make_job(dataset, alice, 1)
    api_proxy.inject("GET", "/events", cut_after(0), times=9)  # without streams, the command polls
    waiting = sluice.start("export", "wait", job.pk)
    wait_until(api_proxy.streams)
    AuthToken.objects.filter(user=alice).delete()
    code, _, err = ended(waiting)
    assert (code, "authentication_failed" in err) == (3, True)


# ---- On a terminal --------------------------------------------------------------------------------------------------


def on_terminal(sluice: Cli, *arguments: object) -> tuple[subprocess.Popen[bytes], int]:
    controller, terminal = pty.openpty()
    sluice.variables = {**sluice.variables, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = sluice.start(*arguments, stdout=terminal, stderr=terminal)
    os.close(terminal)
    return process, controller


@pytest.mark.slow
def test_a_terminal_shows_a_progress_bar(dataset: Dataset, alice: User, sluice: Cli, api_proxy: FaultProxy) -> None:
    """C3."""
    job = make_job(dataset, alice, 4)
    process, terminal = on_terminal(sluice, "export", "wait", job.pk)
    wait_until(api_proxy.streams)
    for _ in range(2):
        end_chunk()
    shown = ""
    while "2 of 4 chunks · 6 rows · 120 B" not in shown or "50%" not in shown:
        shown += os.read(terminal, 10_000).decode(errors="replace")
    fail_chunk()
    fail_chunk()
    shown += read_all(terminal).decode(errors="replace")
    assert process.wait(timeout=60) == 7
    assert "━" in shown
    assert "Failed: JFK 2024-03-01" in shown


@pytest.mark.slow
def test_color_is_used_on_terminals_that_support_it(dataset: Dataset, done: Job, sluice: Cli) -> None:
    process, terminal = on_terminal(sluice, "export", "list")
    assert b"\x1b[32msuccess" in read_all(terminal)
    process.wait()
    sluice.variables = {"NO_COLOR": "1"}
    process, terminal = on_terminal(sluice, "export", "list")
    assert b"\x1b[3" not in read_all(terminal)
    process.wait()
    assert b"\x1b" not in sluice("export", "list").out
