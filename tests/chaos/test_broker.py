"""A broker that loses, delays, or repeats messages. Rows 5 to 7 of docs/reliability.md."""

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

BUSY = 9  # seconds of tolerance beyond a reaper interval on a busy machine
POST_SECONDS = 3


def longest_pause(job: Job) -> float:
    """Return the longest time in seconds without a running chunk of a job, between its first and last chunk."""
    chunks = job.chunks.all()
    ran = sorted((chunk.started_at, chunk.finished_at) for chunk in chunks if chunk.started_at and chunk.finished_at)
    longest, until = timedelta(0), ran[0][0]
    for began, ended in ran:
        longest, until = max(longest, began - until), max(until, ended)
    return longest.total_seconds()


# ---- 5: lost messages -----------------------------------------------------------------------------------------------


def test_each_lost_wake_up_message_costs_a_job_one_reaper_interval(site: Site) -> None:
    """5: the messages for a job's chunks, bundle, and webhook are lost, except those of the reaper."""
    unread = through(site.broker, site.servers.valkey.url(database=2))
    site.start_worker("maintenance", children=1)
    site.start_worker("exports,bundles,webhooks", CELERY_BROKER_WRITE_URL=unread)
    site.start_beat()
    site.start_web(CELERY_BROKER_WRITE_URL=unread)
    with receiver() as receiving:
        site.receivers.append(receiving)
        site.subscribe(receiving.url)
        site.settle(site.submit("WARM"))  # so that all processes have started
        wait_until(lambda: len(receiving.ids) == 1)
        job = site.submit("A", "B", days=2)
        site.settle(job)
        wait_until(lambda: len(receiving.ids) == 2)

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
        site.record_duration(f"a lost wake-up message: {what}", wait.total_seconds(), reaper=REAPER_SECONDS)
        assert wait.total_seconds() < REAPER_SECONDS + BUSY, what
    assert (job.status, site.source.calls()) == ("success", 5)


def flush_all(_site: Site) -> None:
    lose_messages()


@pytest.mark.parametrize("fault", [flush_all, Site.restart_broker_empty])
def test_losing_all_broker_data_costs_one_reaper_interval(site: Site, fault: Callable[[Site], None]) -> None:
    """5: while a job is running, and the message for another job's bundle is queued behind a slow bundle."""
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

    fault(site)
    failed_at = time.monotonic()
    site.points.release("bundle made")
    site.settle(first, waiting)
    waited = time.monotonic() - failed_at
    site.settle(running)

    pause = longest_pause(running)
    site.record_duration(f"{fault.__name__}: longest pause of the job", pause, reaper=REAPER_SECONDS)
    site.record_duration(f"{fault.__name__}: delay of the queued bundle", waited, reaper=REAPER_SECONDS)
    assert all(worker.alive for worker in workers)
    assert {job.status for job in (first, waiting, running)} == {"success"}
    assert max(pause, waited) < REAPER_SECONDS + BUSY
    assert set(Chunk.objects.values_list("attempts", flat=True)) == {1}
    assert site.source.calls() == 19


# ---- 6: a silent broker --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, 20], ids=["short", "long"])
def test_a_silent_broker_blocks_no_request(site: Site, seconds: int) -> None:
    """6: requests are accepted, and their jobs run when the broker responds again.

    The broker accepts connections, but does not respond. A chunk that is running cannot acknowledge its message, or
    send one for its bundle.
    """
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
        time.sleep(seconds)  # longer than all of Celery's timeouts
    site.broker.remove_faults()
    back_at = time.monotonic()
    site.settle(running, *jobs)

    site.record_duration("POST while the broker is silent", max(times))
    site.record_duration("all jobs done after the broker's silence", time.monotonic() - back_at, silent=seconds)
    assert max(times) < POST_SECONDS
    assert worker.alive
    assert {job.status for job in (running, *jobs)} == {"success"}
    assert site.source.calls() == 4


# ---- 7: repeated messages -------------------------------------------------------------------------------------------


class MessageRepeater:
    """A thread that delivers each message three times, delayed and in random order, to the database of the workers."""

    def __init__(self, sent: Redis, read: Redis, chance: Random) -> None:
        self.sent, self.read, self.chance = sent, read, chance
        self.pending: list[tuple[str, bytes]] = []
        self.moved = 0
        self.stopped = Flag()
        self.thread = Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while not self.stopped.wait(0.05):
            self.collect()
            self.deliver(self.chance.randint(0, len(self.pending)))
        self.collect()
        self.deliver(len(self.pending))

    def collect(self) -> None:
        for queue in QUEUES.split(","):
            while isinstance(message := self.sent.rpop(queue), bytes):
                self.pending += [(queue, message)] * 3
                self.moved += 1

    def deliver(self, number: int) -> None:
        self.chance.shuffle(self.pending)
        now, self.pending = self.pending[:number], self.pending[number:]
        for queue, message in now:
            self.read.lpush(queue, message)


@contextmanager
def repeating_messages(site: Site, read: Redis) -> Iterator[MessageRepeater]:
    """Run a MessageRepeater, which delivers the remaining messages at exit."""
    repeater = MessageRepeater(valkey(), read, site.random)
    repeater.thread.start()
    try:
        yield repeater
    finally:
        repeater.stopped.set()
        repeater.thread.join(30)


def test_tripled_and_reordered_messages_change_nothing(site: Site) -> None:
    """7: messages for a job's chunks, bundle, and webhook, and those of beat."""
    url = site.servers.valkey.url(database=1)
    read = Redis.from_url(url)
    for key in ("A", "B"):
        site.source.behave(key, pause=0.3)
    workers = [site.start_worker(CELERY_BROKER_READ_URL=through(site.broker, url)) for _ in range(2)]
    site.start_beat()
    site.start_web()
    with receiver() as receiving, repeating_messages(site, read) as repeater:
        site.receivers.append(receiving)
        site.subscribe(receiving.url)
        jobs = [site.submit("A", days=5), site.submit("B", "C", days=4)]
        site.settle(*jobs)
        wait_until(lambda: len(receiving.ids) == 2)
    wait_until(lambda: not any(read.llen(queue) for queue in QUEUES.split(",")))
    wait_until(lambda: not read.hlen("unacked"))

    assert repeater.moved > 8
    assert site.source.calls() == 13
    assert set(Chunk.objects.values_list("attempts", flat=True)) == {1}
    assert len(list(storage.list_objects("things/"))) == 13
    assert len(list(storage.list_objects("_receipts/"))) == Receipt.objects.count() == 2
    assert sorted(set(receiving.ids)) == sorted(receiving.ids)
    for job in jobs:
        events = Event.objects.filter(job=job).order_by("seq").values_list("kind", "status")
        assert list(events) == [("status", "running"), *[("chunk", "done")] * job.total, ("status", "success")]
    for worker in workers:
        worker.kill()  # the invariants need workers that consume the normal database
    read.flushdb()
    read.close()
