"""Cost of operations in a growing installation.

The same operations run in an installation and in one that is a tenth of its size. `tests/growth/rows.py` creates the
rows so that an operation has the same work in both. In the larger installation, it may read at most 2.5 times as many
blocks, plus a constant. The number of blocks does not depend on the load of the machine. Each operation also has a
maximum time in the database server. TIMES=5 creates five times as many rows.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from django.contrib.auth.models import User
from django.test import Client
from rest_framework.test import APIClient

from config.platform.admin import lists
from tests.cleaning import query_value
from tests.conftest import client_of
from tests.growth import cases, rows
from tests.growth.cases import Case
from tests.integration.plans import blocks_of, plan_lines, plans_of

JOBS = 200_000
TIMES = int(os.environ.get("TIMES", "1"))
SIZE_RATIO = 10
ROUNDS = 3
# Maximum growth of the number of blocks. Index trees become a level deeper, and in a larger table, rows that belong
# together are spread over more blocks. This also affects the 10,000 rows that an admin list counts.
GROWTH, SLACK, LIST_SLACK = 2.5, 50, 500
REPORT = Path(__file__).parents[2] / ".local" / "growth.txt"


class Cost(NamedTuple):
    blocks: int
    milliseconds: float  # of all statements, by the server
    plans: str


def cost_of(case: Case) -> Cost:
    """Measure a case. Measure again if it takes too long, because the machine may stall."""
    costs: list[Cost] = []
    for _ in range(ROUNDS):
        costs.append(measure_once(case))
        if costs[-1].milliseconds < case.max_ms:
            break
    return min(costs, key=lambda cost: cost.milliseconds)


def measure_once(case: Case) -> Cost:
    plans = plans_of(case.work, case.prepare)
    shown = "\n".join("\n".join([" ".join(text.split())[:300], *plan_lines(plan)]) for text, plan in plans)
    blocks = sum(blocks_of(plan) for _, plan in plans)
    return Cost(blocks, sum(plan["Execution Time"] for _, plan in plans), shown)


def measure(jobs: int) -> list[tuple[str, Case, Cost]]:
    began = time.monotonic()
    query_value(f"TRUNCATE {', '.join(rows.TABLES)} RESTART IDENTITY CASCADE")  # so that IDs are the same in both sizes
    alice = User.objects.create_user("alice")
    staff = User.objects.create_user("sam", is_staff=True, is_superuser=True)
    made = rows.make(rows.Size(jobs=jobs), alice=alice, staff=staff)
    print(f"\n{jobs:,} exports, created in {time.monotonic() - began:.0f} s: {rows.counts()}")  # noqa: T201
    api: APIClient = client_of(alice)
    user_browser, staff_browser = Client(), Client()
    user_browser.force_login(alice)
    staff_browser.force_login(staff)
    found = [(name, case, cost_of(case)) for name, case in cases.all_cases(made, api, user_browser, staff_browser)]
    print(f"{len(found)} measured after {time.monotonic() - began:.0f} s")  # noqa: T201
    return found


def violations(name: str, max_ms: float, small: Cost, large: Cost) -> str:
    found = []
    slack = LIST_SLACK if name.startswith("staff /") else SLACK
    if large.blocks > GROWTH * small.blocks + slack:
        found.append(f"reads {large.blocks:,} blocks, but {small.blocks:,} in a tenth of the size")
    if large.milliseconds > max_ms:
        found.append(f"takes {large.milliseconds:.0f} ms, above the limit of {max_ms:.0f} ms")
    return f"{name}: {'; '.join(found)}\n{large.plans}" if found else ""


def table(measured: list[tuple[str, Cost, Cost]]) -> str:
    lines = [f"{'ms':>8} {'in a tenth':>10} {'blocks':>8} {'in a tenth':>10}"]
    lines += [
        f"{large.milliseconds:8.1f} {small.milliseconds:10.1f} {large.blocks:8,} {small.blocks:10,} {name}"
        for name, small, large in measured
    ]
    return "\n".join(lines)


@pytest.mark.timeout(3600)
def test_no_cost_grows_faster_than_its_work(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        lists, "MAX_SEARCHED", JOBS * TIMES // SIZE_RATIO // 2
    )  # below the number of rows in both sizes
    tenth = measure(JOBS * TIMES // SIZE_RATIO)
    whole = measure(JOBS * TIMES)
    pairs = [(name, case, small, large) for (name, case, large), (_, _, small) in zip(whole, tenth, strict=True)]
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(table([(name, small, large) for name, _, small, large in pairs]))

    faults = [found for name, case, small, large in pairs if (found := violations(name, case.max_ms, small, large))]
    assert not faults, "\n\n".join(["", *faults])
