"""Scenes of the exports pages: empty, busy with 1,000 rows, running, failed, ready, and expired."""

from datetime import timedelta

from django.contrib.auth.models import Group, User
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from exports.api.serializers import ExportRequestSerializer
from exports.core.errors import PermanentSourceError, SourceTimeout
from exports.core.states import JOB_ENDED, JobStatus
from exports.delivery import links, receipts
from exports.jobs import actions, submission
from exports.models import Chunk, Dataset, Grant, Job, Receipt, Slot
from exports.models.schedule import Schedule, ScheduleRun
from exports.schedules import runs
from tests.browser.scenes import Scene
from tests.integration import outcomes
from tests.integration.etl_factories import make_rule
from tests.integration.factories import claim_one, make_job, result_of
from tests.integration.schedules import make_schedule

MANY = 1_000


COLUMNS = {
    "day": "date", "origin": "text", "flight": "integer", "carrier": "character varying", "tail_number": "text",
    "departed_at": "timestamp with time zone", "seats": "smallint",
}  # fmt: skip


def dataset(name: str = "flights") -> Dataset:
    Slot.objects.provide(count=8)
    columns = [{"name": each, "type": kind} for each, kind in COLUMNS.items()]
    row, _ = Dataset.objects.get_or_create(
        name=name, function=f"data.{name}", base_path=name, defaults={"columns": columns}
    )
    return row


def newest_job(user: User) -> Job:
    return Job.objects.filter(user=user).latest("created_at")


def path_of_newest_job(user: User) -> str:
    return f"/app/exports/{newest_job(user).pk}"


WORKERS = """
UPDATE exports_chunk SET started_at = now() - interval '60 s' + seq * interval '180 ms',
    finished_at = now() - interval '60 s' + (seq + 1 + seq %% 4) * interval '180 ms',
    backend = 'sluice-export-exports-' || seq %% 4 || '-' || 41 + seq %% 4 || '-0123456789ab'
WHERE job_id = %s AND status = 'done' AND seq >= 10
"""


def running(user: User) -> None:
    """Create a large job with done, running, retrying, and failed chunks."""
    job = make_job(dataset(), user, MANY)
    claims = [claim for _ in range(8) if (claim := claim_one(backend="scene"))]
    for claim in claims[:3]:
        outcomes.finish([(claim, result_of(claim, rows=12_345, bytes=2_400_000))])
    outcomes.fail(claims[3], SourceTimeout(), delay=20)
    outcomes.fail(claims[4], PermanentSourceError("SQLSTATE 42883"), delay=None)
    facts = {
        "status": "done",
        "attempts": 1,
        "source": "live",
        "rows": 345,
        "bytes": 24_000,
        "etag": "x",
        "sha256": "x",
    }
    job.chunks.filter(seq__gte=10, seq__lt=310).update(**facts, data_as_of=timezone.now())
    with connection.cursor() as cursor:
        cursor.execute(WORKERS, [job.pk])
    Job.objects.filter(pk=job.pk).update(done=F("done") + 300, rows=F("rows") + 103_500, bytes=F("bytes") + 7_200_000)


def busy(user: User) -> None:
    """Create 1,000 exports of many kinds."""
    bookings = dataset("bookings")
    statuses = [status for status in JobStatus.values if status != JobStatus.SUCCESS]
    now = timezone.now()
    jobs = Job.objects.bulk_create(
        Job(
            user=user,
            name=("", "Bookings of last week, as a basis for the planning of next week")[n % 3 == 0],
            dataset=bookings,
            schema_version=1,
            format=("csv", "jsonl", "json")[n % 3],
            delivery=("zip", "single", "manifest")[n % 3],
            compression=("none", "gzip")[n % 2],
            ttl=86_400,
            total=100 + n,
            **counts(statuses[n % len(statuses)], 100 + n),
            finished_at=now if statuses[n % len(statuses)] in JOB_ENDED else None,
        )
        for n in range(MANY)
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE exports_jobs j SET created_at = now() - n * interval '7 min'"
            " FROM unnest(%s::uuid[]) WITH ORDINALITY AS each (id, n) WHERE j.job_id = id",
            [[job.pk for job in jobs]],
        )
    ready(user)
    running(user)
    make_job(dataset(), user, 3)


def counts(status: str, total: int) -> dict[str, object]:
    facts: dict[str, object] = {"status": status, "done": total // 3, "rows": total * 1_234, "bytes": total * 567_890}
    if status == JobStatus.FAILED:
        facts |= {"failed": total - total // 3, "error_code": "EXPORT_SOURCE_ERROR"}
    if status == JobStatus.CANCELLED:
        facts |= {"cancelled": total - total // 3}
    if status == JobStatus.PENDING:
        facts |= {"done": 0, "rows": 0, "bytes": 0}
    return facts


MESSAGE = (
    "operator does not exist: text = integer\n"
    "No operator matches the given name and argument types. You might need to add explicit type casts."
)


def failed(user: User) -> None:
    """Create failures of two kinds, one of them with the message of the source, and some successes."""
    make_job(dataset(), user, 12)
    Dataset.objects.update(show_errors=True)
    kinds = [PermanentSourceError("SQLSTATE 42883", message=MESSAGE), SourceTimeout(), None]
    for n in range(12):
        claim = claim_one(backend="scene")
        assert claim
        if error := kinds[n % 3]:
            outcomes.fail(claim, error, delay=None)
        else:
            outcomes.finish([(claim, result_of(claim))])


def ready(user: User) -> None:
    """Create a receipt of an export with one snapshot and one reused chunk."""
    job = make_job(dataset("weather"), user, 6)
    for _ in range(6):
        claim = claim_one(backend="scene")
        assert claim
        outcomes.finish([(claim, result_of(claim, rows=1_000, bytes=98_765))])
    Chunk.objects.filter(job=job, seq=1).update(source="snapshot", data_as_of=timezone.now() - timedelta(days=3))
    Chunk.objects.filter(job=job, seq=2).update(source="reused", data_as_of=timezone.now() - timedelta(hours=5))
    now = timezone.now()
    Job.objects.filter(pk=job.pk).update(status=JobStatus.SUCCESS, finished_at=now, reused=1, degraded=1)
    with transaction.atomic():
        receipt = Receipt.objects.create(
            job=job,
            object_key="_receipts/x",
            etag='"x"',
            checksum="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            size_bytes=592_590,
            rows=6_000,
            files=6,
            degraded=True,
            content_type="application/zip",
            file_name="weather_20240228-20240304.zip",
            expires_at=now + timedelta(seconds=job.ttl),
        )
        links.mint(receipt)


def expired(user: User) -> None:
    ready(user)
    receipts.revoke(Receipt.objects.get(job__user=user))


def cancelled(user: User) -> None:
    actions.cancel(make_job(dataset(), user, 40))


def with_grant(user: User) -> None:
    """Create a dataset from which the user may export only some keys."""
    team = Group.objects.create(name="team")
    user.groups.add(team)
    Grant.objects.create(dataset=dataset(), group=team, key_pattern="JFK|LGA")


def with_datasets(user: User) -> None:
    dataset()
    dataset("weather")


def scheduled(user: User) -> None:
    """Create two schedules: one with a run, a skipped run, and a refused run, and one that is paused."""
    daily = make_schedule(user, dataset(), name="Yesterday's flights")
    read = ExportRequestSerializer.read
    runs.run_now(daily, read, submission.Caller(user_id=user.pk), now=timezone.now())
    for outcome, detail in (
        ("skipped", "The earlier run had not ended."),
        ("refused", "This request exceeds your daily quota."),
    ):
        planned_at = timezone.now() - timedelta(days=1 + (outcome == "refused"))
        ScheduleRun.objects.create(schedule=daily, planned_at=planned_at, outcome=outcome, detail=detail)
    paused = make_schedule(
        user, dataset("weather"), name="Last week's weather, as a basis for the planning of next week"
    )
    paused.disable("The request is not valid: /request/keys/0: Does not match the key pattern of the dataset.")
    paused.save()


def with_rules(user: User) -> None:
    dataset()
    make_rule(user, mode="llm", name="Invoices")


def scheduled_documents(user: User) -> None:
    Dataset.objects.provide_built_in()
    request = {"dataset": "documents", "status": "completed", "format": "parquet"}
    make_schedule(user, Dataset.objects.get(name="documents"), name="Yesterday's results", request=request)


def path_of_first_schedule(user: User, rest: str = "") -> str:
    return f"/app/exports/schedules/{Schedule.objects.filter(user=user).earliest('created_at').pk}{rest}"


SCENES = [
    Scene(name="schedules-empty", path=lambda _: "/app/exports/schedules"),
    Scene(name="schedules", path=lambda _: "/app/exports/schedules", prepare=scheduled),
    Scene(name="schedule-new", path=lambda _: "/app/exports/schedules/new", prepare=with_datasets),
    Scene(name="schedule", path=path_of_first_schedule, prepare=scheduled),
    Scene(name="schedule-edit", path=lambda user: path_of_first_schedule(user, "/edit"), prepare=scheduled),
    Scene(name="exports-empty", path=lambda _: "/app/exports"),
    Scene(name="exports-busy", path=lambda _: "/app/exports", prepare=busy),
    Scene(name="export-new", path=lambda _: "/app/exports/new", prepare=with_datasets),
    Scene(name="export-new-granted", path=lambda _: "/app/exports/new", prepare=with_grant),
    Scene(name="export-new-without-datasets", path=lambda _: "/app/exports/new"),
    Scene(name="export-documents", path=lambda _: "/app/exports/new?dataset=documents", prepare=with_rules),
    Scene(name="schedule-documents", path=path_of_first_schedule, prepare=scheduled_documents),
    Scene(name="export-again", path=lambda user: f"/app/exports/new?from={newest_job(user).pk}", prepare=ready),
    Scene(name="export-running", path=path_of_newest_job, prepare=running),
    Scene(name="export-failed", path=path_of_newest_job, prepare=failed),
    Scene(name="export-ready", path=path_of_newest_job, prepare=ready),
    Scene(name="export-expired", path=path_of_newest_job, prepare=expired),
    Scene(name="export-cancelled", path=path_of_newest_job, prepare=cancelled),
]
