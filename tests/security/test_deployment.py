"""Tests of Django's deployment checks and of the threat model, and a scan of the repository for secrets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

ROOT = Path(settings.BASE_DIR)
PRODUCTION = {
    "SECRET_KEY": "Zb7kq0sXv3nTfR9wLm2Jc8HyPd5GxAe1UoQi4VtBzKrWsNhMg6", "DATABASE_URL": "postgresql://sluice@127.0.0.1:9/none",
    "ALLOWED_HOSTS": "sluice.example", "TRUSTED_PROXY_CIDRS": "10.0.0.0/24", "REDIS_URL": "redis://127.0.0.1:9/0",
    "S3_BUCKET": "none", "S3_ACCESS_KEY_ID": "none", "S3_SECRET_ACCESS_KEY": "none", "LOG_LEVEL": "ERROR",
}  # fmt: skip
SECRETS = {
    "an AWS key id": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "an AWS secret key": r"(?i)aws.{0,30}['\"= ][A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a token of Sluice": r"\bslc_[A-Za-z0-9]{40,}",
    "a webhook secret": r"\bwhsec_[A-Za-z0-9+/]{24,}",
    "a key of OpenAI's": r"\bsk-(?:proj-)?[A-Za-z0-9_-]{32,}",
    "a token of GitHub's": r"\bgh[pousr]_[A-Za-z0-9]{36,}",
    "a password in a URL": r"(?i)\b(?:postgres(?:ql)?|rediss?|amqps?)://\w+:(?!password@|secret@|\$)[A-Za-z0-9]{12,}@",
}
ALLOWED = {
    ("tests/integration/hook.example.pem", "a private key"),  # for TLS tests
    ("exports/api/examples.py", "a webhook secret"),  # an example of the API documentation
    ("docs/openapi.yaml", "a webhook secret"),
}


def run_checks(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    variables = {"PROMETHEUS_MULTIPROC_DIR": str(folder), **variables}
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=ROOT, env=keep | PRODUCTION | variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_deployment_checks_pass_with_safe_settings(tmp_path: Path) -> None:
    done = run_checks(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "check_id"),
    [
        ({"DEBUG": "true"}, "security.W018"),
        ({"SECRET_KEY": "a" * 60}, "security.W009"),
        ({"TRUSTED_PROXY_CIDRS": ""}, "ops.W003"),
    ],
)
def test_the_deployment_checks_fail_with_unsafe_settings(
    tmp_path: Path, variables: dict[str, str], check_id: str
) -> None:
    done = run_checks(tmp_path, **variables)
    assert done.returncode != 0
    assert f"({check_id})" in done.stderr


def test_every_test_named_in_the_threat_model_exists() -> None:
    page = (ROOT / "docs" / "threat-model.md").read_text()
    folder, count = "", 0
    for line in page.splitlines():
        for name, function in re.findall(r"`((?:\w+/)*test_\w+\.py)(?:::(\w+))?`", line):
            folder = name.rpartition("/")[0] or folder
            file = ROOT / "tests" / folder / name.rpartition("/")[2]
            assert file.is_file(), name
            assert not function or f"def {function}(" in file.read_text(), function
            count += 1
    assert count > 50


def repository_files() -> list[Path]:
    """Return the files of the repository, including untracked ones."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [ROOT / name for name in sorted(set(listed.stdout.split("\0"))) if name and (ROOT / name).is_file()]


def findings(name: str, text: str) -> list[tuple[str, str]]:
    return [(name, kind) for kind, shape in SECRETS.items() if re.search(shape, text)]


@pytest.mark.slow
def test_the_repository_contains_no_secret() -> None:
    files = repository_files()
    assert len(files) > 500
    found = []
    for file in files:
        found += findings(str(file.relative_to(ROOT)), file.read_text(errors="replace"))
    assert set(found) - ALLOWED == set()


@pytest.mark.parametrize("kind", SECRETS)
def test_the_scan_finds_a_planted_secret(kind: str) -> None:
    """Each secret is concatenated from two parts, so that this file does not contain it."""
    shapes = {
        "an AWS key id": "AKIA" + "ABCDEFGHIJKLMNOP",
        "an AWS secret key": "aws_secret_access_key = " + "a1/+" * 10,
        "a private key": "-----BEGIN RSA " + "PRIVATE KEY-----",
        "a token of Sluice": "slc_" + "a1" * 30,
        "a webhook secret": "whsec_" + "A1+/" * 8,
        "a key of OpenAI's": "sk-" + "a1" * 20,
        "a token of GitHub's": "ghp_" + "a1" * 18,
        "a password in a URL": "postgresql://sluice:" + "a1b2c3d4e5f6@db",
    }
    assert findings("x", shapes[kind]) == [("x", kind)]
