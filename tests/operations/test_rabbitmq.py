"""RabbitMQ as the broker: quorum queues with a delivery limit, and the same guarantees as with Redis.

The fixture `site` checks the invariants of tests/chaos/invariants.py at the end of each test.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from pydantic import SecretStr

from config.celery import app
from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.ports import LOOPBACK
from config.platform import broker
from config.platform.http import health
from exports.models import Chunk, Event, Job
from tests.broker import broker_at
from tests.chaos.documents import ALL, attempts, code_of, post_calls, scripted_rule, settle, submit
from tests.chaos.proxy import Proxy
from tests.chaos.site import QUEUES, Site, proxy_of, through
from tests.operations.rabbitmq import RabbitMQ, running
from tests.operations.stunnel import Authority, Stunnel
from tests.waiting import wait_until

EXPORTS = "exports,bundles,webhooks"
POST_SECONDS = 3


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    with running(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def wire(rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The proxy between all processes and RabbitMQ. The test process itself publishes without it."""
    proxy = proxy_of(rabbitmq.url)
    with rabbitmq.connect() as connection, connection.channel() as channel:
        for name in list(app.amqp.queues):
            queue = broker.queue(name, url=rabbitmq.url)
            queue(channel).declare()
            channel.queue_purge(name)
            monkeypatch.setitem(app.amqp.queues, name, queue)
    with broker_at(rabbitmq.url):
        forget_connections()
        yield proxy
        forget_connections()
    proxy.close()


def forget_connections() -> None:
    """Make this process reconnect when it publishes, like a forked one."""
    ours: Any = app
    ours._after_fork()


@pytest.fixture
def on_rabbitmq(rabbitmq: RabbitMQ, wire: Proxy, site: Site) -> Site:
    site.variables["CELERY_BROKER_URL"] = through(wire, rabbitmq.url)
    return site


# ---- Normal operation ----------------------------------------------------------------------------------------------
def test_exports_and_documents_go_through_quorum_queues(on_rabbitmq: Site, rabbitmq: RabbitMQ) -> None:
    """C7."""
    site = on_rabbitmq
    site.start_worker(ALL)
    site.start_beat()
    site.start_web()
    rule = scripted_rule(site)
    job = site.submit("A", "B", days=3)
    task = submit(site, "Hello.", rule=rule)
    site.settle(job)
    settle(task)

    assert (job.status, site.source.calls()) == ("success", 6)
    assert (code_of(task), attempts(task)) == (("completed", "postprocess"), (1, 1))
    listed = [line.split("\t") for line in rabbitmq.ctl("list_queues", "name", "type", "arguments").splitlines()]
    ours = {name: (kind, arguments) for name, kind, arguments, *_ in listed if name in ALL.split(",")}
    assert set(ours) == set(ALL.split(","))
    for kind, arguments in ours.values():
        assert kind == "quorum"
        assert f'{{"x-delivery-limit",{broker.MAX_REDELIVERIES}}}' in arguments
    channels = rabbitmq.ctl("list_channels", "global_prefetch_count").splitlines()[1:]
    assert set(channels) == {"0"}, "quorum queues do not support a global prefetch"
    assert "Direct exchange" not in site.logs()
    assert site.client.get("/readyz").json()["checks"]["broker"] == "ok"


def test_countdowns_are_held_by_rabbitmq_and_not_by_a_worker(on_rabbitmq: Site) -> None:
    """Only RabbitMQ can deliver the second attempts: beat does not run."""
    site = on_rabbitmq
    site.start_worker("etl-ocr,etl-postprocess", children=1)
    site.start_web()
    rule = scripted_rule(site)
    site.wait_for_workers()
    task = submit(site, "once:raise ProviderUnavailable\npost:once:raise LlmInvalidResponse", rule=rule)
    settle(task)

    assert attempts(task) == (2, 2)
    assert "wakeup_not_sent" not in site.logs()


# ---- Worker crashes ------------------------------------------------------------------------------------------------
def test_messages_of_a_killed_worker_are_redelivered(on_rabbitmq: Site, rabbitmq: RabbitMQ) -> None:
    """SIGKILL of a whole worker, parent included, in the middle of its chunks."""
    site = on_rabbitmq
    site.source.behave("SLOW", pause=2)
    victim = site.start_worker(EXPORTS)
    site.start_web()
    job = site.submit("SLOW", days=2)
    wait_until(lambda: site.source.live_calls() == 2)
    assert not rabbitmq.queued("exports")
    victim.kill()
    wait_until(lambda: rabbitmq.queued("exports") == 2)

    site.start_worker(EXPORTS)
    site.start_worker("maintenance", children=1)
    site.start_beat()
    site.settle(job)
    assert job.status == "success"


@pytest.mark.timeout(240)
def test_a_chunk_that_kills_its_whole_worker_fails_alone(on_rabbitmq: Site) -> None:
    """Attempts are counted in the row, independently of messages."""
    site = on_rabbitmq
    site.source.behave("POISON", pause=60)
    site.variables["EXPORT_MAX_ATTEMPTS"] = "2"
    site.start_worker("maintenance", children=1)
    site.start_beat()
    site.start_web()
    job = site.submit("POISON")
    for _ in range(2):
        victim = site.start_worker(EXPORTS, children=1)
        site.wait_for_call(limit=60)
        victim.kill()
        wait_until(lambda: not site.source.live_calls())
    site.start_worker(EXPORTS)
    other = site.submit("GOOD")
    site.settle(job, other, limit=90)

    chunk = Chunk.objects.get(job=job)
    assert (chunk.status, chunk.error_code, chunk.attempts) == ("failed", "EXPORT_WORKER_LOST", 2)
    assert other.status == "success"


def test_rabbitmq_drops_a_message_at_the_delivery_limit(on_rabbitmq: Site, rabbitmq: RabbitMQ) -> None:
    """The job continues nevertheless, because the reaper sends a new wake-up message."""
    site = on_rabbitmq
    site.start_web()
    job = site.submit("A")
    wait_until(lambda: rabbitmq.queued("exports") == 1)
    for _ in range(broker.MAX_REDELIVERIES + 1):
        assert lose_consumed_message(rabbitmq)
    assert not lose_consumed_message(rabbitmq)

    site.start_worker()
    site.start_beat()
    site.settle(job)
    assert (job.status, site.source.calls()) == ("success", 1)


def lose_consumed_message(rabbitmq: RabbitMQ) -> bool:
    """Take the only message, and disconnect like a killed worker. Returns whether there was one."""
    connection: Any = rabbitmq.connect()
    found = connection.default_channel.basic_get("exports") is not None
    connection.collect()
    wait_until(lambda: rabbitmq.unacknowledged("exports") == 0)
    return found


# ---- Lost and repeated messages ------------------------------------------------------------------------------------
def test_lost_messages_are_sent_again(on_rabbitmq: Site, rabbitmq: RabbitMQ) -> None:
    site = on_rabbitmq
    site.start_web()
    jobs = [site.submit("A", days=2), site.submit("B")]
    wait_until(lambda: rabbitmq.queued("exports") == 3)
    assert rabbitmq.purge(*QUEUES.split(",")) == 3

    site.start_worker()
    site.start_beat()
    site.settle(*jobs)
    assert {job.status for job in jobs} == {"success"}
    assert site.source.calls() == 3


def test_tripled_messages_change_nothing(on_rabbitmq: Site, rabbitmq: RabbitMQ) -> None:
    site = on_rabbitmq
    site.start_web()
    rule = scripted_rule(site)
    jobs = [site.submit("A", days=3), site.submit("B", days=2)]
    task = submit(site, "Hello.", rule=rule)
    wait_until(lambda: rabbitmq.queued("exports") >= 5 and rabbitmq.queued("etl-ocr"))
    for queue in ("exports", "etl-ocr"):
        triple(rabbitmq, queue)
    wait_until(lambda: rabbitmq.queued("exports") >= 15)

    site.start_worker(ALL)
    site.start_beat()
    site.settle(*jobs)
    settle(task)
    wait_until(lambda: not rabbitmq.queued("exports"))
    assert site.source.calls() == 5
    assert set(Chunk.objects.values_list("attempts", flat=True)) == {1}
    assert (attempts(task), post_calls(rule)) == ((1, 1), 1)
    for job in jobs:
        events = Event.objects.filter(job=job).values_list("kind", "status")
        assert len(events) == len(set(events)) + job.total - 1


def triple(rabbitmq: RabbitMQ, queue: str) -> None:
    connection: Any
    with rabbitmq.connect() as connection:
        channel = connection.default_channel
        found = []
        while message := channel.basic_get(queue):
            found.append(message)
        for message in found * 3:
            channel.basic_publish(message, exchange=queue, routing_key=queue)
        for message in found:
            channel.basic_ack(message.delivery_tag)


# ---- The server -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("end", [RabbitMQ.stop, RabbitMQ.kill], ids=["stopped", "killed"])
def test_a_job_survives_a_rabbitmq_restart(
    on_rabbitmq: Site, rabbitmq: RabbitMQ, end: Callable[[RabbitMQ], None]
) -> None:
    site = on_rabbitmq
    site.source.behave("SLOW", pause=0.5)
    workers = [site.start_worker(EXPORTS), site.start_worker("maintenance", children=1)]
    site.start_beat()
    site.start_web()
    job = site.submit("SLOW", days=16)
    wait_until(lambda: Job.objects.get(pk=job.pk).done >= 2)

    end(rabbitmq)
    rabbitmq.start()
    back_at = time.monotonic()
    after = site.submit("AFTER")
    site.settle(job, after, limit=90)

    site.record_duration(f"RabbitMQ {end.__name__} and started again: jobs done", time.monotonic() - back_at)
    assert (job.status, after.status) == ("success", "success")
    assert all(worker.alive for worker in workers)
    assert site.source.calls() == 17


@pytest.mark.parametrize("fault", ["refuse", "stall"])
def test_a_rabbitmq_outage_blocks_no_request(on_rabbitmq: Site, wire: Proxy, fault: str) -> None:
    site = on_rabbitmq
    site.source.behave("SLOW", pause=1)
    worker = site.start_worker(ALL)
    site.start_beat()
    site.start_web()
    rule = scripted_rule(site)
    running = site.submit("SLOW")
    site.wait_for_call()

    getattr(wire, fault)()
    times, jobs = [], []
    for key in "ABC":
        began_at = time.monotonic()
        jobs.append(site.submit(key))
        times.append(time.monotonic() - began_at)
    task = submit(site, "Hello.", rule=rule)
    assert site.client.get("/readyz").json()["checks"]["broker"] != "ok"
    wire.remove_faults()
    back_at = time.monotonic()
    site.settle(running, *jobs, limit=120)
    settle(task, limit=120)

    site.record_duration(f"POST during the RabbitMQ fault {fault}", min(times))
    site.record_duration("all jobs done after the RabbitMQ outage", time.monotonic() - back_at, did=fault)
    assert min(times) < POST_SECONDS
    assert worker.alive
    assert {job.status for job in (running, *jobs)} == {"success"}
    assert code_of(task)[0] == "completed"
    assert site.source.calls() == 4


def test_work_longer_than_the_consumer_timeout_finishes_before_the_worker_exits(
    on_rabbitmq: Site, rabbitmq: RabbitMQ
) -> None:
    """RabbitMQ closes the worker's channel, and redelivers the message to the next worker, which finds no work."""
    site = on_rabbitmq
    rabbitmq.ctl("eval", "application:set_env(rabbit, consumer_timeout, 2000).")
    try:
        site.source.behave("SLOW", pause=6)
        worker = site.start_worker(EXPORTS, children=1)
        site.start_web()
        site.wait_for_workers()
        job = site.submit("SLOW")
        wait_until(lambda: worker.exit_status == 1)
    finally:
        rabbitmq.ctl("eval", "application:set_env(rabbit, consumer_timeout, 1800000).")
    site.start_worker()
    site.start_beat()
    site.settle(job)

    assert (job.status, site.source.calls()) == ("success", 1)
    assert Chunk.objects.get(job=job).attempts == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda url: url.replace("sluice:", "somebody:"), "rejects the user name or password"),
        (lambda url: url.removesuffix("/") + "elsewhere", "does not have this virtual host, or denies access to it"),
    ],
    ids=["password", "virtual host"],
)
def test_a_rabbitmq_error_is_reported_and_blocks_no_request(
    on_rabbitmq: Site, rabbitmq: RabbitMQ, change: Callable[[str], str], reason: str
) -> None:
    site = on_rabbitmq
    site.start_web(CELERY_BROKER_URL=change(rabbitmq.url))
    job = site.submit("A")
    ready = site.client.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["broker"]) == (503, reason)

    site.start_worker()
    site.start_beat()
    site.settle(job)
    assert job.status == "success"


# ---- TLS ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def authorities(tmp_path: Path) -> tuple[Authority, Authority]:
    return Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "another", "another")


@pytest.fixture
def encrypted(rabbitmq: RabbitMQ, authorities: tuple[Authority, Authority], tmp_path: Path) -> Iterator[str]:
    """The URL of RabbitMQ behind TLS, without TLS options."""
    root = tmp_path / "stunnel"
    root.mkdir()
    certificate, key = authorities[0].issue(LOOPBACK)
    server = Stunnel(root, KeptSettings(root), to=rabbitmq.url, certificate=certificate, key=key)
    server.start()
    yield rabbitmq.url.replace("amqp://", "amqps://").replace(f":{rabbitmq.port}/", f":{server.port}/")
    server.stop()


def test_amqps_checks_the_certificate_and_its_name(
    encrypted: str, wire: Proxy, site: Site, authorities: tuple[Authority, Authority], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, another = (f"{encrypted}?ssl_ca_certs={authority.certificate}" for authority in authorities)
    site.variables["CELERY_BROKER_URL"] = ours
    site.start_worker()
    site.start_beat()
    site.start_web()
    job = site.submit("A", days=2)
    site.settle(job)
    assert job.status == "success"
    assert site.client.get("/readyz").json()["checks"]["broker"] == "ok"

    for url, expected in {
        ours: "ok",
        f"{encrypted}?ssl_cert_reqs=none": "ok",
        encrypted: health.UNTRUSTED,
        another: health.UNTRUSTED,
        ours.replace(LOOPBACK, "127.1"): health.UNTRUSTED,  # a name that is not in the certificate
        ours.replace(LOOPBACK, "127.1") + "&ssl_check_hostname=false": "ok",
    }.items():
        with monkeypatch.context() as patch:
            changed = settings.SLUICE.model_copy(update={"celery_broker_url": SecretStr(url)})
            patch.setattr(settings, "SLUICE", changed)
            assert health.outcome("broker", health.check_broker) == expected, url
