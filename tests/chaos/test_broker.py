"""A broker that forgets, is silent, or says everything three times. Rows 5 to 7 of docs/reliability.md."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from random import Random
from threading import Event as Flag
from threading import Thread

import pytest
from redis import Redis

from config.platform import storage
from exports.models import Chunk, Delivery, Event, Job, Receipt
from tests.broker import lose_messages, queued, valkey
from tests.chaos.site import QUEUES, REAPER_SECONDS, Site, through
from tests.integration.receiver import receiver
from tests.waiting import wait_until

BUSY = 9  # seconds that a busy machine may add to a reaper interval
POST_SECONDS = 3


def stood_still(job: Job) -> float:
    """Return the longest time in seconds in which none of a job's chunks ran, from the first to the last."""
    chunks = job.chunks.all()
    ran = sorted((chunk.started_at, chunk.finished_at) for chunk in chunks if chunk.started_at and chunk.finished_at)
    longest, until = timedelta(0), ran[0][0]
    for began, ended in ran:
        longest, until = max(longest, began - until), max(until, ended)
    return longest.total_seconds()


# ---- 5: what is forgotten -------------------------------------------------------------------------------------------


def test_each_lost_hint_costs_a_job_one_reaper_interval(site: Site) -> None:
    """5: no hint of a job comes through, be it of its chunks, its bundle or its webhook; only the reaper's do."""
    unread = through(site.broker, site.servers.valkey.url(database=2))
    site.start_worker("maintenance", children=1)
    site.start_worker("exports,bundles,webhooks", CELERY_BROKER_WRITE_URL=unread)
    site.start_beat()
    site.start_web(CELERY_BROKER_WRITE_URL=unread)
    with receiver() as heard:
        site.receivers.append(heard)
        site.client.post(
            "/exports/webhooks", json={"url": heard.url, "events": ["export.succeeded"]}
        ).raise_for_status()
        site.settle(site.submit("WARM"))  # so that no process is still starting
        wait_until(lambda: len(heard.ids) == 1)
        job = site.submit("A", "B", days=2)
        site.settle(job)
        wait_until(lambda: len(heard.ids) == 2)

    delivery = Delivery.objects.get(job=job)
    assert job.started_at
    assert job.finished_at
    assert delivery.finished_at
    waits = {
        "chunks": job.started_at - job.created_at,
        "bundle": job.finished_at - max(chunk.finished_at for chunk in job.chunks.all() if chunk.finished_at),
        "webhook": delivery.finished_at - job.finished_at,
    }
    for what, wait in waits.items():
        site.measured(f"a lost hint: {what}", wait.total_seconds(), reaper=REAPER_SECONDS)
        assert wait.total_seconds() < REAPER_SECONDS + BUSY, what
    assert (job.status, site.source.calls()) == ("success", 5)


def forget_all(_site: Site) -> None:
    lose_messages()


@pytest.mark.parametrize("harm", [forget_all, Site.restart_broker_empty])
def test_a_broker_that_forgets_everything_costs_one_reaper_interval(site: Site, harm: Callable[[Site], None]) -> None:
    """5: in the middle of one job, while the hint of another's bundle waits behind a bundle that takes its time."""
    site.source.behave("SLOW", pause=0.5)
    workers = [site.start_worker("exports,maintenance"), site.start_worker("bundles,webhooks", children=1)]
    site.start_beat()
    site.start_web()
    site.settle(site.submit("WARM"))
    site.points.arm("bundle made", "wait")
    first = site.submit("FIRST")
    wait_until(lambda: not site.points.armed("bundle made"))
    waiting = site.submit("A")
    wait_until(lambda: queued("bundles"))
    running = site.submit("SLOW", days=16)
    wait_until(lambda: Job.objects.get(pk=running.pk).done >= 2)

    harm(site)
    harmed_at = time.monotonic()
    site.points.release("bundle made")
    site.settle(first, waiting)
    waited = time.monotonic() - harmed_at
    site.settle(running)

    stood = stood_still(running)
    site.measured(f"{harm.__name__}: the job stood still", stood, reaper=REAPER_SECONDS)
    site.measured(f"{harm.__name__}: the waiting bundle", waited, reaper=REAPER_SECONDS)
    assert all(worker.alive for worker in workers)
    assert {job.status for job in (first, waiting, running)} == {"success"}
    assert max(stood, waited) < REAPER_SECONDS + BUSY
    assert set(Chunk.objects.values_list("attempts", flat=True)) == {1}
    assert site.source.calls() == 19


# ---- 6: silence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, 20], ids=["short", "long"])
def test_a_silent_broker_holds_no_request_up(site: Site, seconds: int) -> None:
    """6: it accepts connections and says nothing; requests are taken, and their jobs run when it speaks again. The
    message of a chunk that runs as the silence begins cannot be acknowledged, nor can its bundle be hinted."""
    site.source.behave("SLOW", pause=1)
    worker = site.start_worker()
    site.start_beat()
    site.start_web()
    running = site.submit("SLOW")
    site.wait_for_call()
    if not seconds:
        site.settle(running)

    site.broker.stall()
    wait_until(lambda: site.source.live_calls() == 0)
    times, jobs = [], []
    for key in "ABC":
        began_at = time.monotonic()
        jobs.append(site.submit(key))
        times.append(time.monotonic() - began_at)
    if seconds:
        time.sleep(seconds)  # long enough for every time limit of Celery's to pass
    site.broker.pass_on()
    back_at = time.monotonic()
    site.settle(running, *jobs)

    site.measured("POST while the broker is silent", max(times))
    site.measured("the broker speaks again: all jobs done", time.monotonic() - back_at, silent=seconds)
    assert max(times) < POST_SECONDS
    assert worker.alive
    assert {job.status for job in (running, *jobs)} == {"success"}
    assert site.source.calls() == 4


# ---- 7: repetition --------------------------------------------------------------------------------------------------


class Postman:
    """Takes every message from where it was sent to and brings it to where workers listen: three times, some at once
    and some later, in any order."""

    def __init__(self, sent: Redis, read: Redis, chance: Random) -> None:
        self.sent, self.read, self.chance = sent, read, chance
        self.bag: list[tuple[str, bytes]] = []
        self.taken = 0
        self.over = Flag()
        self.thread = Thread(target=self.walk, daemon=True)

    def walk(self) -> None:
        while not self.over.wait(0.05):
            self.collect()
            self.bring(self.chance.randint(0, len(self.bag)))
        self.collect()
        self.bring(len(self.bag))

    def collect(self) -> None:
        for queue in QUEUES.split(","):
            while isinstance(message := self.sent.rpop(queue), bytes):
                self.bag += [(queue, message)] * 3
                self.taken += 1

    def bring(self, number: int) -> None:
        self.chance.shuffle(self.bag)
        now, self.bag = self.bag[:number], self.bag[number:]
        for queue, message in now:
            self.read.lpush(queue, message)


@contextmanager
def postman(site: Site, read: Redis) -> Iterator[Postman]:
    """The last messages are brought as it leaves."""
    walks = Postman(valkey(), read, site.random)
    walks.thread.start()
    try:
        yield walks
    finally:
        walks.over.set()
        walks.thread.join(30)


def test_messages_that_come_three_times_and_out_of_order_change_nothing(site: Site) -> None:
    """7: of a job's chunks, its bundle, its webhook and of beat."""
    place = site.servers.valkey.url(database=1)
    read = Redis.from_url(place)
    for key in ("A", "B"):
        site.source.behave(key, pause=0.3)
    workers = [site.start_worker(CELERY_BROKER_READ_URL=through(site.broker, place)) for _ in range(2)]
    site.start_beat()
    site.start_web()
    with receiver() as heard, postman(site, read) as walks:
        site.receivers.append(heard)
        site.client.post(
            "/exports/webhooks", json={"url": heard.url, "events": ["export.succeeded"]}
        ).raise_for_status()
        jobs = [site.submit("A", days=5), site.submit("B", "C", days=4)]
        site.settle(*jobs)
        wait_until(lambda: len(heard.ids) == 2)
    wait_until(lambda: not any(read.llen(queue) for queue in QUEUES.split(",")))
    wait_until(lambda: not read.hlen("unacked"))

    assert walks.taken > 8
    assert site.source.calls() == 13
    assert set(Chunk.objects.values_list("attempts", flat=True)) == {1}
    assert len(list(storage.list_objects("things/"))) == 13
    assert len(list(storage.list_objects("_receipts/"))) == Receipt.objects.count() == 2
    assert sorted(set(heard.ids)) == sorted(heard.ids)
    for job in jobs:
        told = Event.objects.filter(job=job).order_by("seq").values_list("kind", "status")
        assert list(told) == [("status", "running"), *[("chunk", "done")] * job.total, ("status", "success")]
    for worker in workers:
        worker.kill()  # they listen where nobody speaks any more
    read.flushdb()
    read.close()
