"""Object storage with errors, stalls, and lost replies. Row 10 of docs/reliability.md."""

import time

from config.platform import storage
from exports.models import Chunk, Job
from tests.chaos.documents import ALL, attempts, ocr_calls, scripted_rule, settle, status, submit
from tests.chaos.faults import answer_503
from tests.chaos.site import Site
from tests.chaos.test_workers import TWO_PARTS
from tests.integration import faulty_s3
from tests.waiting import let_pass, wait_until

DONE = ("done", "", 1)
# By key, the requests that fail: method, suffix of the path, fault, and count; and whether the source is called again.
# One failure is retried immediately. After two, the chunk waits until the storage accepts writes, and no attempt is
# counted.
SMALL = {
    "PUT-500": ("PUT", "", faulty_s3.answer_500, 1, False),
    "PUT-503": ("PUT", "", answer_503, 1, False),
    "PUT-503-TWICE": ("PUT", "", answer_503, 2, True),
    "PUT-CLOSED": ("PUT", "", faulty_s3.lose_request, 1, False),
    "PUT-UNANSWERED": ("PUT", "", faulty_s3.lose_reply, 1, False),
}
LARGE = {
    "BEGIN-500-TWICE": ("POST", "?uploads", faulty_s3.answer_500, 2, True),
    "PART-503": ("PUT", "?uploadId=", answer_503, 1, False),
    # There are two parts, so one of them fails twice.
    "PARTS-CLOSED": ("PUT", "?uploadId=", faulty_s3.lose_request, 3, True),
    "COMPLETE-ERROR-IN-200": ("POST", "?uploadId=", faulty_s3.answer_200_with_error, 1, False),
    "COMPLETE-UNANSWERED": ("POST", "?uploadId=", faulty_s3.lose_reply, 1, False),
    "COMPLETE-500-TWICE": ("POST", "?uploadId=", faulty_s3.answer_500, 2, True),
}


def test_failed_storage_requests_cost_no_attempt(site: Site) -> None:
    """10: each chunk of the job has a different fault."""
    troubles = {**SMALL, **LARGE}
    for key in LARGE:
        site.source.behave(key, rows=TWO_PARTS)
    with faulty_s3.running(site.servers.seaweedfs.url) as proxy:
        for key, (method, text, how, times, _) in troubles.items():
            proxy.inject(method, f"/{key}_20240228.csv{text}", how, times=times)
        site.start_worker(S3_ENDPOINT_URL=proxy.url)
        site.start_beat()
        site.start_web()
        job = site.submit(*troubles, delivery="manifest")
        site.settle(job)
        assert [fault.text for fault in proxy.faults if fault.times > 0] == [], "a fault was not triggered"

        assert (job.status, outcomes(job)) == ("success", dict.fromkeys(troubles, DONE))
        assert paths(job, "done") == visible()
        assert not list(storage.list_uploads("things/"))
        assert site.source.calls() == len(troubles) + sum(again for *_, again in troubles.values())


def test_a_storage_that_refuses_writes_pauses_everything(site: Site) -> None:
    """10: it responds to all other requests, as with a full disk. Afterward, all jobs and documents succeed."""
    rule = scripted_rule(site)
    with faulty_s3.running(site.servers.seaweedfs.url) as proxy:
        for method in ("PUT", "POST"):
            proxy.inject(method, "", faulty_s3.answer_500, times=100_000)
        site.start_worker(ALL, S3_ENDPOINT_URL=proxy.url, children=4)
        site.start_beat()
        site.start_web()
        site.wait_for_workers()
        keys = [f"K{number}" for number in range(75)]
        jobs = [site.submit(*keys[n::3], delivery=kind) for n, kind in enumerate(("single", "zip", "manifest"))]
        document = submit(site, "A page.", rule=rule)
        let_pass(10)
        assert set(Chunk.objects.values_list("status", flat=True)) == {"pending"}
        assert (site.source.calls(), ocr_calls(document)) == (0, 0), "work was done that could not be stored"

        proxy.faults.clear()
        ended_at = time.monotonic()
        site.settle(*jobs)
        settle(document)
        site.record_duration("10: 75 chunks and a document after a full disk", time.monotonic() - ended_at)
        assert ({job.status for job in jobs}, status(document)) == ({"success"}, "completed")
        assert (site.source.calls(), attempts(document)) == (len(keys), (1, 1))


def outcomes(job: Job) -> dict[str, tuple[str, str, int]]:
    chunks = Chunk.objects.filter(job=job).values_list("key", "status", "error_code", "attempts")
    return {key: (status, code, attempts) for key, status, code, attempts in chunks}


def paths(job: Job, status: str) -> set[str]:
    return set(Chunk.objects.filter(job=job, status=status).values_list("path", flat=True))


def visible() -> set[str]:
    return {item.key for item in storage.list_objects("things/")}


def test_a_stuck_part_is_retried_once_before_the_chunk_waits(site: Site) -> None:
    """10: in the meantime, no part of the file is visible, and other chunks continue."""
    for key, times in (("STUCK", 1), ("STUCK-TWICE", 2)):
        site.source.behave(key, rows=TWO_PARTS)
        site.storage.stall_request(rf"/{key}_20240228\.csv\?uploadId=[^&]+&partNumber=1 ", times=times)
    site.start_worker(children=3)
    site.start_beat()
    site.start_web()
    site.wait_for_workers()
    began_at = time.monotonic()
    job = site.submit("STUCK", "STUCK-TWICE", "A", delivery="manifest")
    wait_until(lambda: Chunk.objects.filter(job=job, status="done").exists())
    assert paths(job, "done") == visible()
    site.settle(job)

    site.record_duration("10: the chunk ends after two stuck parts", time.monotonic() - began_at)
    assert (job.status, outcomes(job)) == ("success", {"STUCK": DONE, "STUCK-TWICE": DONE, "A": DONE})
    assert paths(job, "done") == visible()
    assert site.source.calls() == 4


def test_lost_storage_replies_cost_nothing(site: Site) -> None:
    """10: the replies to the PUT of a small file, the completion of a multipart upload, and the copy of a delivery."""
    site.source.behave("LARGE", rows=TWO_PARTS)
    site.start_worker()
    site.start_beat()
    site.start_web()
    requests = {"SMALL": "/SMALL_20240228.csv", "LARGE": "<CompleteMultipartUpload", "COPIED": "x-amz-copy-source: "}
    for key, text in requests.items():
        site.storage.lose_reply_to(text)
        job = site.submit(key)
        site.settle(job)
        assert site.storage.lost == 1, f"no reply was lost to {text}"
        assert (job.status, outcomes(job), job.completion_attempts) == ("success", {key: DONE}, 1)
    assert site.source.calls() == 3


def test_closed_connections_are_reopened_and_outages_are_survived(site: Site) -> None:
    """10: chunks and deliveries wait for the end of an outage."""
    site.source.behave("LARGE", rows=TWO_PARTS)
    site.points.arm("part handed over", "wait")
    site.start_worker()
    site.start_beat()
    site.start_web()
    site.wait_for_workers()
    job = site.submit("LARGE")
    wait_until(site.points.reached)
    site.storage.reset()
    site.points.release("part handed over")
    site.settle(job)
    assert (job.status, outcomes(job)) == ("success", {"LARGE": DONE})

    site.storage.refuse()
    waiting = site.submit("SMALL")
    wait_until(lambda: "chunk_retrying" in site.logs())
    assert visible() == paths(job, "done")
    site.storage.remove_faults()
    site.settle(waiting)
    assert (waiting.status, outcomes(waiting)) == ("success", {"SMALL": DONE})

    site.points.arm("bundle claimed", "wait")
    waiting = site.submit("OTHER")
    wait_until(lambda: len(site.points.reached()) == 2)
    site.storage.refuse()
    site.points.release("bundle claimed")
    wait_until(lambda: "completion_retrying" in site.logs())
    site.storage.remove_faults()
    ended_at = time.monotonic()
    site.settle(waiting)
    site.record_duration("10: a delivery continues after an outage", time.monotonic() - ended_at)
    assert (waiting.status, outcomes(waiting)) == ("success", {"OTHER": DONE})
