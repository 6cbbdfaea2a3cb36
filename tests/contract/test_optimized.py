"""Error responses if Python runs without docstrings and assertions (`-OO`)."""

from collections.abc import Iterator
from uuid import uuid4

import httpx2
import pytest

from config.dev.stack.processes import Web
from tests.serving import serving, variables


@pytest.fixture
def optimized(transactional_db: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    root = tmp_path_factory.mktemp("optimized")
    with serving(root, variables(root, PYTHONOPTIMIZE="2")) as running:
        yield running


@pytest.mark.slow
def test_errors_keep_their_texts(optimized: Web, token: str) -> None:
    with httpx2.Client(base_url=optimized.url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        nowhere = client.get("/nowhere", headers={"Accept": "application/json"}).json()
        missing = client.get(f"/exports/{uuid4()}").json()
        invalid = client.post("/exports", json={"datset": "flights"}).json()
    assert (nowhere["status"], nowhere["title"], nowhere["detail"]) == (404, "Not Found", "Not found.")
    assert (missing["status"], missing["title"], missing["detail"]) == (404, "Not Found", "Export not found.")
    assert (invalid["status"], invalid["title"], invalid["detail"]) == (400, "Bad Request", "The input is not valid.")
    assert all(error["detail"] for error in invalid["errors"])
