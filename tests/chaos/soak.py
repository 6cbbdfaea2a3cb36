"""Soak test: clients use the whole API during random faults of all kinds. `make soak MINUTES=10 SEED=7`.

Every response is recorded. At the end, a checker verifies the guarantees of the API with only this record, and the
invariants are checked as after every test here. The test prints a summary.
"""

import os
import re
import statistics
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from datetime import datetime

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone
from knox.models import AuthToken

from config.dev.stack.orphan_watchdog import PROJECT
from config.platform.db import sql
from etl.models import Task
from exports.models import Chunk, File, Job
from tests.chaos.faults import Fault, FaultInjector, schedule
from tests.chaos.history.checker import check, count_by_kind, unused
from tests.chaos.history.crowd import Crowd
from tests.chaos.history.history import Violation
from tests.chaos.history.record import Line, Record, read
from tests.chaos.history.source import FUNCTIONS, function_of
from tests.chaos.invariants import all_deliveries_ended, settle_all
from tests.chaos.load import Load
from tests.chaos.site import QUEUES, Site, through
from tests.integration import faulty_s3
from tests.integration.etl_factories import make_rule
from tests.waiting import wait_until

MINUTES = float(os.environ.get("MINUTES", "10"))
LONG_ENOUGH = 3  # minutes in which the clients use the whole API
EVERY = 4.0  # seconds between two faults, on average
RATE = "100000/min"
RECORD = PROJECT / ".local" / "soak.jsonl"
MAX_PRINTED = 20  # violations
JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
RECOVERY = """
SELECT EXTRACT(EPOCH FROM max(moved) - %(at)s)::float8 AS seconds FROM (
    SELECT min(later.at) AS moved
    FROM chaos.move began JOIN chaos.move later ON later.what = 'chunk' AND later.id = began.id AND later.nr > began.nr
    WHERE began.what = 'chunk' AND began.became = 'running' AND began.at < %(at)s
    GROUP BY began.nr HAVING min(later.at) > %(at)s
) held
"""
LINES = {
    "messages not sent, and sent later by the reaper": r'"wakeup_not_sent"',
    "messages delivered again": r'"redelivered"',
    "leases expired": r'"lease_expired"',
    "writes fenced off": r'"lease_lost"|"completion_lost"',
    "cleanup steps that failed, and were repeated": r'"cleanup_step_failed"',
}


@pytest.mark.timeout(0)
def test_a_soak_violates_no_guarantee(site: Site, alice: User, bob: User) -> None:
    carol = User.objects.create_user("carol")
    site.source.behave("SLOW", rows=200, pause=1.5)
    site.source.behave("BIG", rows=120_000)
    site.allowed.redone = True  # many jobs create the same files concurrently
    seed, record = str(site.random.random()), Record(RECORD)
    faults = schedule(site.random, MINUTES * 60, every=EVERY)
    with ExitStack() as stack:
        site.object_proxy = stack.enter_context(faulty_s3.running(through(site.storage, os.environ["S3_ENDPOINT_URL"])))
        start(site)
        _, token = AuthToken.objects.create(alice)
        rule = make_rule(alice, mode="llm", name="scripted")
        load = Load(lambda: site.web.url if site.web else "", token, seed, rule.pk)
        history = Crowd(site, [user.username for user in (alice, bob, carol)], seed, record, stack)
        load.start(2)
        history.start()
        ends = inject_all(FaultInjector(site), faults, record)
        load.stop()
        history.stop()
        remove_faults(site)
        with suppress(AssertionError):  # the checker reports the jobs that have not ended
            wait_until(has_caught_up, limit=300, every=0.5)
            settle_all(site)
        history.audit()

    assert load.failures == []
    made = set(map(str, Task.objects.values_list("pk", flat=True)))
    assert set(load.accepted.values()) == made, "accepted documents and rows differ"
    lines = read(RECORD)
    sys.stdout.write(table(site, load, lines, faults, ends))
    violations = check(lines)
    sys.stdout.write("".join(f"{each}\n{rows_about(each)}" for each in violations[:MAX_PRINTED]))
    assert not violations, f"{Counter(each.rule for each in violations)}; the record is {RECORD}"
    assert jobs_of_two_versions() == []
    if MINUTES >= LONG_ENOUGH:
        assert not unused(lines), "parts of the API were not used"


def jobs_of_two_versions() -> list[str]:
    """Return the jobs with the schema version of one registration and the function of another.

    Clients would notice this only in the content of downloaded files.
    """
    jobs = Job.objects.filter(dataset__name__in=FUNCTIONS).select_related("dataset")
    return [
        f"{job.pk}: {job.function} as version {job.schema_version}"
        for job in jobs
        if job.function != function_of(job.dataset.name, job.schema_version)
    ]


def rows_about(violation: Violation) -> str:
    """Return the database rows of the jobs in a violation, because the record contains only responses to clients."""
    found = ""
    for job in Job.objects.filter(pk__in=set(JOB_ID.findall(violation.text))).order_by("created_at"):
        found += f"    job {job.pk} schema={job.schema_version} function={job.function} reuse={job.reuse}\n"
        for chunk in job.chunks.order_by("seq"):
            file = File.objects.filter(path=chunk.path).values("schema_version", "etag", "data_as_of").first()
            found += (
                f"        chunk {chunk.pk} {chunk.key} {chunk.effective_date} {chunk.source} attempts={chunk.attempts} "
                f"path={chunk.path} etag={chunk.etag} data_as_of={chunk.data_as_of} file={file}\n"
            )
    return found


def start(site: Site) -> None:
    """Start the site as in production, with separate workers for urgent work.

    No receipt expires before the final audit.
    """
    lasting = {"EXPORT_LINK_TTL_SECONDS": int(MINUTES * 60) + 3600}
    rates = dict.fromkeys(("SIGN_IN_RATE", "ETL_RATE", "EXPORT_RATE", "EXPORT_POLL_RATE", "EXPORT_DOWNLOAD_RATE"), RATE)
    site.start_web(**rates, **lasting)
    assert site.object_proxy
    patience: dict[str, object] = {
        "EXPORT_MAX_ATTEMPTS": 6,
        "ETL_OCR_MAX_ATTEMPTS": 6,
        "ETL_POSTPROCESS_MAX_ATTEMPTS": 6,
    }
    patience |= {"S3_ENDPOINT_URL": site.object_proxy.url, **lasting}
    for queues in ("exports", "exports", QUEUES.removeprefix("exports,"), "etl-ocr,etl-postprocess"):
        site.start_worker(queues, children=2, **patience)
    site.start_beat()
    site.start_beat()


def inject_all(injector: FaultInjector, faults: list[Fault], record: Record) -> list[datetime]:
    """Inject each fault at its time, or after the end of the previous one. Return the time of each fault's end."""
    began, ends = time.monotonic(), []
    for fault in faults:
        time.sleep(max(0, began + fault.at - time.monotonic()))
        at = time.monotonic()
        injector.inject(fault)
        record.add("fault", at, what=fault.kind)
        ends.append(timezone.now())
    return ends


def remove_faults(site: Site) -> None:
    for proxy in site.proxies:
        proxy.remove_faults()
    for process in (*site.workers, *site.beats):
        if not process.alive:
            process.start()
    connection.close()  # the restarted server closed our sessions


def has_caught_up() -> bool:
    """Return whether the backlog of all faults is processed."""
    return not (Job.objects.active().exists() or Task.objects.open().exists()) and all_deliveries_ended()


def table(site: Site, load: Load, lines_of_record: list[Line], faults: list[Fault], ends: list[datetime]) -> str:
    jobs, chunks, tasks = (Counter(of.objects.values_list("status", flat=True)) for of in (Job, Chunk, Task))
    logs = site.logs()
    again = sum(max(0, attempts - 1) for attempts in Chunk.objects.values_list("attempts", flat=True))
    lines = [
        f"jobs {status_counts(jobs)}",
        f"chunks {status_counts(chunks)}; {again} repeated attempts",
        f"tasks {status_counts(tasks)}",
        f"documents accepted {len(load.accepted)}, after {load.refused} refused or failed requests",
        *(f"{what} {len(re.findall(pattern, logs))}" for what, pattern in LINES.items()),
        f"seconds to recover: {recovery_times(ends)}",
        f"faults {len(faults)}",
        *(f"  {kind} {number}" for kind, number in sorted(Counter(fault.kind for fault in faults).items())),
        "responses, streams, files, webhooks, and actions by kind and status",
        *(f"  {kind} {number}" for kind, number in sorted(count_by_kind(lines_of_record).items())),
    ]
    return "\n" + "\n".join(lines) + "\n"


def status_counts(counts: Counter[str]) -> str:
    return f"{counts.total()}: " + ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))


def recovery_times(ends: list[datetime]) -> str:
    """Return how long it took after each fault until all chunks that were claimed at its end made progress."""
    found = [row["seconds"] for end in ends for row in sql.rows(RECOVERY, at=end) if row["seconds"] is not None]
    if len(found) < 2:
        return "too few"
    cuts = statistics.quantiles(found, n=20, method="inclusive")
    return f"p50 {statistics.median(found):.1f}, p95 {cuts[-1]:.1f}, max {max(found):.1f} (of {len(found)} faults)"
