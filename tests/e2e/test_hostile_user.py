"""One user sends the most expensive requests to all routes while another user works. A3, B24, B27, C4."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import pytest
import yaml
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from config.dev.stack.processes import Web
from exports.models import Dataset
from tests.e2e import hostile_user
from tests.e2e.conftest import Workers
from tests.e2e.hostile_user import FORM, Attack, send
from tests.security.routes import ROUTES
from tests.serving import token_of
from tests.unit.costly_schemas import KNOWN

SECONDS, BASELINE_SECONDS = 30, 5
PATHS = ("/exports", "/api/v1/etl/rules", "/livez")
UUID = "5d3f2c4e-7a1b-4c7e-9e39-0f8f5c9f2a10"
VALUES = {
    **dict.fromkeys(("job_id", "webhook_id", "delivery_id", "schedule_id", "token_id"), UUID),
    **dict.fromkeys(("task_id", "batch_id", "rule_id", "version", "sample_id", "number", "page", "factor_id"), 1),
    **dict.fromkeys(("effective_date", "day"), "2024-01-01"),
    "key": "JFK", "name": "things",
}  # fmt: skip
COMPOSE = yaml.load((Path(settings.BASE_DIR) / "docker" / "compose.yaml").read_text(), yaml.CSafeLoader)


def attacks() -> Iterator[Attack]:
    """Yield expensive requests: for routes that parse schemas, lists, or nested JSON, then a GET and up to two POSTs of
    a few megabytes for each route."""
    recursive = {"properties": {f"p{n}": {"$ref": "#"} for n in range(2500)}}
    schemas = [*KNOWN.values(), {"prefixItems": [{}] * 21_000}, recursive]
    for schema in schemas:
        text = json.dumps(schema, separators=(",", ":"))
        yield Attack("POST", "/api/v1/etl/rules", f'{{"name": "a", "json_schema": {text}}}'.encode())
        rule = {"name": "a", "postprocess_mode": "llm", "json_schema": text, "format": "1", "markdown": "x"}
        for path in ("/app/rules/check", "/app/rules/new", "/app/rules/try"):
            yield Attack("POST", path, urlencode(rule).encode(), FORM)
    item = {"key": "JFK", "effectiveDate": "2013-02-15"}
    largest = json.dumps({"dataset": "things", "items": [item] * 100_000}, separators=(",", ":")).encode()
    pasted = urlencode({"dataset": "things", "pairs": "JFK 2013-02-15\n" * 100_000}).encode()
    for path in ("/exports", "/exports/preview"):
        yield Attack("POST", path, largest)
        yield Attack("POST", path, largest, is_chunked=True)
    for path in ("/app/exports/new", "/app/exports/new/preview"):
        yield Attack("POST", path, pasted, FORM)
    nested = b'{"a": [' + (b"[" * 190 + b"]" * 190 + b",") * 1900 + b"[]]}"
    yield from [Attack("POST", "/api/v1/etl/rules/1/test", nested)] * hostile_user.THREADS
    many = b'{"a": [' + b"[]," * 1_600_000 + b"[]]}"
    deep = b'{"a": ' + b"[" * 2_400_000 + b"]" * 2_400_000 + b"}"
    for route in ROUTES:
        if route.is_admin:
            continue
        path = route.filled(VALUES)
        yield Attack("GET", path)
        if "post" in route.methods and "sign" not in path:
            yield Attack("POST", path, many)
            yield Attack("POST", path, deep, is_chunked=True)


def session_of(user: User) -> dict[str, str]:
    """Return the headers of a signed-in browser."""
    client = Client()
    client.force_login(user)
    csrf = "c" * 32
    return {"Cookie": f"sessionid={client.cookies['sessionid'].value}; csrftoken={csrf}", "X-CSRFToken": csrf}


def peak_memory(web: Web) -> float:
    """Return the largest resident memory of the web process so far, in MiB."""
    lines = Path(f"/proc/{web.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def percentile(seconds: list[float]) -> float:
    """Return the 95th percentile."""
    return sorted(seconds)[int(len(seconds) * 0.95)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hostile_user_delays_no_other_user_causes_no_errors_and_stays_within_the_memory_limit(
    own_web: Web, workers: Workers, dataset: Dataset, alice: User, bob: User
) -> None:
    """On 2 cores with a load of 10, GET /exports takes 0.2 to 0.4 s at the 95th percentile, and 0.04 to 0.07 s without
    the hostile user. The web process uses 425 to 482 MiB. The message of a failure has the measured values.
    """
    with ThreadPoolExecutor(hostile_user.THREADS) as threads:  # the first requests of a fresh process
        first = threads.map(lambda _: send(own_web.port, Attack("GET", "/api/schema"), {}), range(40))
        assert set(first) == {200}

    hostile, other = session_of(alice), {"Authorization": f"Bearer {token_of(bob)}"}
    with hostile_user.process() as client, hostile_user.process() as attacker:
        baseline = client.submit(hostile_user.measure, own_web.port, PATHS, other, BASELINE_SECONDS).result()
        attacking = attacker.submit(hostile_user.attack, own_web.port, list(attacks()), hostile, SECONDS)
        under_attack = client.submit(hostile_user.measure, own_web.port, PATHS, other, SECONDS).result()
        results = attacking.result()

    memory = peak_memory(own_web)
    slowest = sorted(results.slowest.items(), key=lambda pair: -pair[1])[:10]
    seconds = {
        path: (percentile(baseline[path]), percentile(under_attack[path]), len(under_attack[path])) for path in PATHS
    }
    report = f"{seconds}, load {os.getloadavg()[0]}, {memory:.0f} MiB, {results.statuses}, slowest: {slowest}"
    limit = COMPOSE["services"]["web"]["deploy"]["resources"]["limits"]["memory"]
    assert 500 not in results.statuses, report
    assert memory < int(limit.removesuffix("M")), report
    for path in PATHS:
        assert percentile(under_attack[path]) < 1, report
