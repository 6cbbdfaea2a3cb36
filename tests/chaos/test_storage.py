"""An object storage that fails, stalls, or loses what it says. Row 10 of docs/reliability.md."""

import time

from config.platform import storage
from exports.models import Chunk, Job
from tests.chaos.site import Site
from tests.chaos.test_workers import TWO_PARTS
from tests.integration import troubled_s3
from tests.integration.troubled_s3 import Handler
from tests.waiting import wait_until

DONE, FAILED = ("done", "", 1), ("failed", "EXPORT_UPLOAD_FAILED", 1)


def answer_503(handler: Handler, _body: bytes) -> None:
    handler.answer(503, [], b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Later.</Message></Error>")


# Key -> the requests that fail: method, what follows the path, how, and how often; and how its chunk ends.
# Whatever fails once is tried again at once; what fails twice ends the chunk at its first attempt.
SMALL = {
    "PUT-500": ("PUT", "", troubled_s3.answer_500, 1, DONE),
    "PUT-503": ("PUT", "", answer_503, 1, DONE),
    "PUT-503-TWICE": ("PUT", "", answer_503, 2, FAILED),
    "PUT-CLOSED": ("PUT", "", troubled_s3.lose_request, 1, DONE),
    "PUT-UNANSWERED": ("PUT", "", troubled_s3.lose_reply, 1, DONE),
}
LARGE = {
    "BEGIN-500-TWICE": ("POST", "?uploads", troubled_s3.answer_500, 2, FAILED),
    "PART-503": ("PUT", "?uploadId=", answer_503, 1, DONE),
    "PARTS-CLOSED": ("PUT", "?uploadId=", troubled_s3.lose_request, 3, FAILED),  # of two parts, so one of them twice
    "COMPLETE-ERROR-IN-200": ("POST", "?uploadId=", troubled_s3.answer_200_with_error, 1, DONE),
    "COMPLETE-UNANSWERED": ("POST", "?uploadId=", troubled_s3.lose_reply, 1, DONE),
    "COMPLETE-500-TWICE": ("POST", "?uploadId=", troubled_s3.answer_500, 2, FAILED),
}


def test_a_request_that_fails_is_made_once_more_and_then_the_chunk_fails(site: Site) -> None:
    """10: each chunk of the job has a trouble of its own."""
    troubles = {**SMALL, **LARGE}
    for key in LARGE:
        site.source.behave(key, rows=TWO_PARTS)
    with troubled_s3.running(site.servers.seaweedfs.url) as proxy:
        for key, (method, text, how, times, _) in troubles.items():
            proxy.trouble(method, f"/{key}_20240228.csv{text}", how, times=times)
        site.start_worker(S3_ENDPOINT_URL=proxy.url)
        site.start_beat()
        site.start_web()
        job = site.submit(*troubles, delivery="manifest")
        site.settle(job)
        assert [trouble.text for trouble in proxy.troubles if trouble.times > 1] == [], "a trouble did not come about"

        assert outcomes(job) == {key: trouble[-1] for key, trouble in troubles.items()}
        assert paths(job, "failed").isdisjoint(visible()), "something is visible that was never whole"
        assert paths(job, "done") == visible()
        assert not list(storage.list_uploads("things/"))
        assert site.source.calls() == len(troubles)

        retried(site, job)
        assert (job.status, job.done) == ("success", len(troubles))


def outcomes(job: Job) -> dict[str, tuple[str, str, int]]:
    chunks = Chunk.objects.filter(job=job).values_list("key", "status", "error_code", "attempts")
    return {key: (status, code, attempts) for key, status, code, attempts in chunks}


def paths(job: Job, status: str) -> set[str]:
    return set(Chunk.objects.filter(job=job, status=status).values_list("path", flat=True))


def visible() -> set[str]:
    return {item.key for item in storage.list_objects("things/")}


def retried(site: Site, job: Job) -> None:
    """Start the failed chunks again, as a person does, and wait for the end."""
    site.allowed.retried.add(str(job.pk))
    answer = site.client.post(f"/exports/{job.pk}/retry")
    assert answer.status_code == 202, answer.text
    site.settle(job)


def test_a_part_that_gets_stuck_is_sent_anew_and_at_the_second_time_the_chunk_fails(site: Site) -> None:
    """10: nothing of it is visible meanwhile, and other chunks go on."""
    for key, times in (("STUCK", 1), ("STUCK-TWICE", 2)):
        site.source.behave(key, rows=TWO_PARTS)
        site.storage.get_stuck_at(rf"/{key}_20240228\.csv\?uploadId=[^&]+&partNumber=1 ", times=times)
    site.start_worker(children=3)
    site.start_beat()
    site.start_web()
    site.wait_for_workers()
    began_at = time.monotonic()
    job = site.submit("STUCK", "STUCK-TWICE", "A", delivery="manifest")
    wait_until(lambda: Chunk.objects.filter(job=job, status="done").exists())
    assert paths(job, "done") == visible()
    site.settle(job)

    site.measured("10: given up after two parts that got stuck", time.monotonic() - began_at)
    assert outcomes(job) == {"STUCK": DONE, "STUCK-TWICE": FAILED, "A": DONE}
    assert paths(job, "done") == visible()
    assert site.source.calls() == 3
    retried(site, job)
    assert job.status == "success"


def test_replies_that_are_lost_cost_nothing(site: Site) -> None:
    """10: to the one PUT of a small file, to the completion of a large one, and to the copy that is delivered."""
    site.source.behave("LARGE", rows=TWO_PARTS)
    site.start_worker()
    site.start_beat()
    site.start_web()
    texts = {"PUT": "/SMALL_20240228.csv", "COMPLETE": "<CompleteMultipartUpload", "COPY": "x-amz-copy-source: "}
    for key, text in (("SMALL", texts["PUT"]), ("LARGE", texts["COMPLETE"]), ("COPIED", texts["COPY"])):
        site.storage.lose_reply_to(text)
        job = site.submit(key)
        site.settle(job)
        assert site.storage.lost == 1, f"no reply was lost to {text}"
        assert (job.status, outcomes(job), job.completion_attempts) == ("success", {key: DONE}, 1)
    assert site.source.calls() == 3


def test_connections_that_are_closed_are_made_anew_and_an_outage_is_over_when_it_is_over(site: Site) -> None:
    """10: a delivery waits for the end of an outage; a chunk does not, and is there for a person's retry."""
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
    failed = site.submit("SMALL")
    site.settle(failed)
    assert (failed.status, outcomes(failed)) == ("failed", {"SMALL": FAILED})
    assert visible() == paths(job, "done")
    site.storage.pass_on()
    retried(site, failed)
    assert failed.status == "success"

    site.points.arm("bundle claimed", "wait")
    waiting = site.submit("OTHER")
    wait_until(lambda: len(site.points.reached()) == 2)
    site.storage.refuse()
    site.points.release("bundle claimed")
    wait_until(lambda: "completion_retrying" in site.logs())
    site.storage.pass_on()
    over_at = time.monotonic()
    site.settle(waiting)
    site.measured("10: a delivery goes on after an outage", time.monotonic() - over_at)
    assert (waiting.status, outcomes(waiting)) == ("success", {"OTHER": DONE})
