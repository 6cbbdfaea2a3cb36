"""Optional integrations, such as tracing and error reports, which are imported only if they are configured."""

import os
import subprocess
import sys

import pytest
from django.core.exceptions import ImproperlyConfigured

from config import env

# redis-py imports OpenTelemetry's metrics if the package is installed, so they are not listed here.
TRACES = ("opentelemetry.sdk.trace", "opentelemetry.exporter", "opentelemetry.proto")
LOADED = """
import sys
{start}
print(*[name for name in sys.modules if name.startswith({names})])
"""
WEB = "import config.asgi"
# The startup of a worker, up to its first task.
WORKER = """
from celery.signals import celeryd_init, worker_process_init
from config.celery import app
app.loader.import_default_modules()
celeryd_init.send(sender="test", instance=None, conf=app.conf, options={})
worker_process_init.send(sender=None)
"""


def imported(start: str, names: tuple[str, ...], **variables: str) -> list[str]:
    """Return the modules with these prefixes that a process with these variables imports during its startup."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(start=start, names=names)],
        env={**os.environ, **variables}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("start", [WEB, WORKER], ids=["web", "worker"])
@pytest.mark.parametrize(
    ("variables", "loaded"),
    [
        # A cluster may set these variables in every container.
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SERVICE_NAME": "x"}, set()),
        pytest.param({"TRACING": "true"}, set(TRACES), marks=pytest.mark.slow),
        pytest.param({"SENTRY_DSN": "http://0123@127.0.0.1:9/7"}, {"sentry_sdk"}, marks=pytest.mark.slow),
    ],
    ids=["off", "tracing", "sentry"],
)
def test_a_process_imports_only_configured_integrations(
    start: str, variables: dict[str, str], loaded: set[str]
) -> None:
    names = imported(start, (*TRACES, "sentry_sdk"), **variables)
    assert {each for each in (*TRACES, "sentry_sdk") if any(name.startswith(each) for name in names)} == loaded


@pytest.mark.parametrize("dsn", ["pearl", "ftp://pearl@127.0.0.1/7", "https://pearl.example.org/7", "https://pearl@/7"])
def test_an_invalid_dsn_is_refused_without_quoting_it(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTRY_DSN", dsn)
    with pytest.raises(ImproperlyConfigured, match="SENTRY_DSN") as caught:
        env.read.__wrapped__()
    assert "pearl" not in str(caught.value)


def test_an_empty_dsn_disables_error_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTRY_DSN", "")
    assert env.read.__wrapped__().sentry_dsn is None


@pytest.mark.slow
def test_a_worker_does_not_import_pages_admin_or_sign_in() -> None:
    """These would increase the memory of a worker process from 123 to 141 MB."""
    names = (
        "config.urls", "unfold.admin", "rest_framework.views", "exports.admin.", "exports.pages.", "pyarrow", "authlib",
        "fido2",
    )  # fmt: skip
    assert imported(WORKER, names) == []
