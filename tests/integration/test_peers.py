"""Log events about an unreachable OCR provider or language model. B13, B16, A28."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
from django.conf import LazySettings
from pydantic import AnyHttpUrl, SecretStr
from pytest_httpserver import HTTPServer

from etl.core.errors import EtlError
from etl.core.formats import DocumentFormat
from etl.core.stage_context import StageContext
from etl.postprocessors import client
from etl.providers.base import Document
from etl.providers.mineru import MinerUProvider
from tests.conftest import change_settings

ConnectTo = Callable[[str], list[dict[str, Any]]]


def ask_mineru(settings: LazySettings, url: str, folder: Path) -> None:
    changes = {"etl_mineru_url": AnyHttpUrl(url), "etl_mineru_protocol": "v4", "etl_mineru_api_key": SecretStr("pearl")}
    change_settings(settings, **changes)
    path = folder / "pearl.pdf"
    path.write_bytes(b"pearl")
    document = Document(
        path=path, kind=DocumentFormat.HTML, size=5, sha256="0" * 64, name="17.pdf", url=lambda: "https://pearl"
    )
    with closing(MinerUProvider()) as provider:
        provider.convert(document, context=StageContext(seconds=60))


def ask_model(_settings: LazySettings, url: str, _folder: Path) -> None:
    server = client.ModelEndpoint(base_url=url, key="pearl", model="pearl", seconds=30, max_tokens=None)
    client.call(
        server, {"model": "pearl", "messages": [{"role": "user", "content": "pearl"}]}, context=StageContext(seconds=60)
    )


@pytest.fixture(params=[(ask_mineru, "mineru_unavailable"), (ask_model, "llm_unavailable")], ids=["mineru", "llm"])
def connect_to(
    request: pytest.FixtureRequest, settings: LazySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ConnectTo:
    """Return a function that calls an unreachable server and returns the log events about it."""
    ask, event = request.param
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)

    def lines_of(url: str) -> list[dict[str, Any]]:
        with structlog.testing.capture_logs() as lines, pytest.raises(EtlError):
            ask(settings, url, tmp_path)
        assert "pearl" not in str(lines)
        return [dict(line) for line in lines if line["event"] == event]

    return lines_of


def test_a_server_that_is_down_is_logged_with_the_cause(connect_to: ConnectTo, closed_port: int) -> None:
    lines = connect_to(f"http://127.0.0.1:{closed_port}/pearl")
    assert lines
    for line in lines:
        assert (line["log_level"], line["host"]) == ("warning", f"127.0.0.1:{closed_port}")
        assert line["cause"] == "ConnectionRefusedError (ECONNREFUSED)"


def test_an_unknown_host_name_is_reported(connect_to: ConnectTo) -> None:
    lines = connect_to("http://missing.invalid/pearl")
    assert lines
    for line in lines:
        assert line["host"] == "missing.invalid:80"
        assert line["cause"].startswith("gaierror (EAI_")


def test_a_server_without_tls_is_reported(connect_to: ConnectTo, httpserver: HTTPServer) -> None:
    lines = connect_to(f"https://127.0.0.1:{httpserver.port}/pearl")
    assert lines
    for line in lines:
        assert line["host"] == f"127.0.0.1:{httpserver.port}"
        assert line["cause"].startswith("SSLError (")
