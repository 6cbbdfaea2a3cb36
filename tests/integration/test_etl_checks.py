"""`manage.py check` on well-formed but inconsistent settings. B11, B22."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


def run_check(**variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=PROJECT, env={**os.environ, **variables}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ETL_POSTPROCESS_LONG_STRATEGY", "chunked", "ETL_POSTPROCESS_LONG_STRATEGY must be one of: direct"),
        ("ETL_OCR_PROVIDER", "missing.Provider", "(etl.E002) ETL_OCR_PROVIDER: missing.Provider cannot be imported."),
        ("ETL_OCR_PROVIDER", "pathlib.Path",
         "(etl.E003) ETL_OCR_PROVIDER: pathlib.Path is not a subclass of OCRProvider."),
    ],
)  # fmt: skip
def test_it_refuses_settings_that_do_not_work(name: str, value: str, message: str) -> None:
    """B22."""
    code, errors = run_check(**{name: value})

    assert code == 1
    assert message in errors


@pytest.mark.slow
def test_it_warns_of_a_server_without_a_model() -> None:
    code, errors = run_check(ETL_LLM_BASE_URL="http://127.0.0.1:1/v1")

    assert code == 0
    assert "(etl.W001) ETL_LLM_BASE_URL is set, but ETL_LLM_MODEL is not." in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["-m", "uvicorn", "config.asgi:application", "--port", "1"],
        ["-m", "celery", "-A", "config", "worker", "-Q", "etl-ocr", "-c", "1"],
        ["-m", "config.dev.stack.prepare", "admin", "/nowhere/password", "/nowhere/token"],
    ],
    ids=["web", "worker", "make up"],
)
def test_a_misconfigured_process_does_not_start(command: list[str]) -> None:
    """B22: otherwise, every submission would be answered with 500, or every task would fail."""
    wrong = {"ETL_OCR_PROVIDER": "missing.Provider", "ETL_POSTPROCESS_LONG_STRATEGY": "chunked"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=PROJECT, env={**os.environ, **wrong}, check=False, capture_output=True, text=True, timeout=30,
    )  # fmt: skip

    assert done.returncode == 1
    first, strategy, provider = done.stderr.strip().splitlines()[-3:]
    assert first == "These settings do not work:"
    assert strategy.startswith("  ETL_POSTPROCESS_LONG_STRATEGY must be one of: direct")
    assert provider == "  ETL_OCR_PROVIDER: missing.Provider cannot be imported."
    assert "Traceback" not in done.stderr
