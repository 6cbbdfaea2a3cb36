"""Fuzz test with schemathesis, a real web process, and real workers: all responses match the OpenAPI document. C4.

The environment variables `FUZZ_EXAMPLES` and `FUZZ_SEED`, which `make fuzz` sets, change the number of examples and the
random seed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from config.dev.stack.processes import Web
from config.platform.webhooks import subscriptions
from config.settings import BASE_DIR
from exports.models import Dataset
from exports.worker import completion, execution
from tests.e2e.conftest import Workers
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.etl_progress import complete, fail
from tests.integration.factories import fail_chunk, make_job

EXAMPLES = os.environ.get("FUZZ_EXAMPLES", "5")
SEED = os.environ.get("FUZZ_SEED", "20130215")
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
HOOKS = Path(__file__).with_name("fuzz_checks.py")
UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"
HOOK = "http://127.0.0.1:9/hook"


@pytest.fixture
def known(dataset: Dataset, alice: User) -> dict[str, list[Any]]:
    """Values for requests: IDs of objects in different states, and IDs that do not exist."""
    dataset.name = "flights"  # as in the document's examples
    dataset.save()
    done = make_job(dataset, alice, 2, delivery="manifest")
    execution.drain()
    completion.complete(done.pk)
    failed = make_job(dataset, alice, 1, key="EWR")
    fail_chunk()
    hook = subscriptions.create(user_id=alice.pk, url=HOOK, events=["export.succeeded"])
    delivery = subscriptions.send_test(hook)
    completed, refused = make_task(alice), make_task(alice)
    complete(completed)
    fail(refused)
    mine, systems = make_rule(alice, name="mine"), make_rule(None, name="the system's", slug="a-system-rule")
    return {
        "jobs": [str(done.pk), str(failed.pk), UNKNOWN_ID],
        "webhooks": [str(hook.pk), UNKNOWN_ID],
        "deliveries": [str(delivery.pk), UNKNOWN_ID],
        "tasks": [completed.pk, refused.pk, 10**9, 2**63 - 1],
        "rules": [mine.pk, systems.pk, 10**9, 2**63 - 1],
        "keys": ["JFK", "EWR", "..", "a/b"],
        "days": ["2024-02-28", "2024-02-29", "0001-01-01"],
        "datasets": [dataset.name, "nothing"],
        "urls": [HOOK, "https://127.0.0.1/", "http://10.0.0.1/", "ftp://127.0.0.1/"],
        "files": [f"etl/uploads/{alice.pk}/{UNKNOWN_ID}", "../../x"],
        "types": ["text/plain", "application/pdf", "application/zip"],
    }


def configuration(dictionaries: dict[str, list[Any]]) -> str:
    """Return a configuration file that extends `schemathesis.toml`."""
    lines = [f"[dictionaries.{name}]\nvalues = {json.dumps(values)}" for name, values in dictionaries.items()]
    return "\n".join([f"hooks = {json.dumps(str(HOOKS))}", CONFIGURATION.read_text(), *lines])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_responses_to_generated_input_match_the_document(
    known: dict[str, list[Any]], web: Web, token: str, workers: Workers, tmp_path: Path
) -> None:
    settings = tmp_path / "schemathesis.toml"
    settings.write_text(configuration(known))
    workers.start("exports,bundles,etl-ocr,etl-postprocess")
    ran = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "--config-file", settings, "run",
            BASE_DIR / "docs" / "openapi.yaml", "--url", web.url, "--header", f"Authorization: Bearer {token}",
            "--max-examples", EXAMPLES, "--seed", SEED, "--no-color",
        ],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
