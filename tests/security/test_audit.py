"""Tests of `make audit` against a scripted osv.dev server, because the real one is not reachable from tests."""

import json
import subprocess
from pathlib import Path

import pytest
from django.conf import settings
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

ROOT = Path(settings.BASE_DIR)
# The fields of https://ossf.github.io/osv-schema/ that the audit reads.
VULNERABILITY = {
    "schema_version": "1.6.0", "id": "PYSEC-0000-1", "summary": "Made up for this test.",
    "affected": [{
        "package": {"ecosystem": "PyPI", "name": "django"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "999.0"}]}],
    }],
}  # fmt: skip


def locked(file: str) -> set[str]:
    """Return the names of the packages in a requirements file, without those for other systems, such as Windows."""
    lines = (ROOT / file).read_text().splitlines()
    found = [Requirement(line.rstrip(" \\")) for line in lines if "==" in line and not line.startswith((" ", "#"))]
    return {canonicalize_name(each.name) for each in found if each.marker is None or each.marker.evaluate()}


def audit(osv: HTTPServer) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "audit", f"OSV_URL={osv.url_for('/v1/query')}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_every_locked_package_is_audited(httpserver: HTTPServer) -> None:
    queried: set[str] = set()

    def respond(request: Request) -> Response:
        queried.add(json.loads(request.data)["package"]["name"])
        return Response("{}", content_type="application/json")

    httpserver.expect_request("/v1/query", method="POST").respond_with_handler(respond)
    done = audit(httpserver)
    assert done.returncode == 0, done.stderr
    assert "No known vulnerabilities found" in done.stderr
    assert {"django", "celery", "psycopg", "pillow"} <= locked("requirements.txt") <= queried


@pytest.mark.slow
def test_a_vulnerability_fails_the_audit_and_is_named(httpserver: HTTPServer) -> None:
    def respond(request: Request) -> Response:
        found = {"vulns": [VULNERABILITY]} if json.loads(request.data)["package"]["name"] == "django" else {}
        return Response(json.dumps(found), content_type="application/json")

    httpserver.expect_request("/v1/query", method="POST").respond_with_handler(respond)
    done = audit(httpserver)
    assert done.returncode != 0
    assert "PYSEC-0000-1" in done.stdout
    assert "999.0" in done.stdout
    assert "have known vulnerabilities" in done.stderr


@pytest.mark.slow
def test_an_unavailable_vulnerability_database_fails_the_audit(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/v1/query").respond_with_data("", status=503)
    done = audit(httpserver)
    assert done.returncode != 0
    assert "did not respond" in done.stderr
