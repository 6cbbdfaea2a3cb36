"""docs/engines.md, compared with the code, and the settings of broker connections."""

from pathlib import Path
from ssl import CERT_NONE, CERT_REQUIRED

import pytest
from django.conf import LazySettings, settings
from pydantic import SecretStr

from config.ops.checks import timeouts
from config.platform import broker

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "engines.md").read_text()


def test_the_page_lists_the_queues_and_limits_in_rabbitmq() -> None:
    assert f"a delivery limit of {broker.MAX_REDELIVERIES}." in PAGE
    assert f"Heartbeats** come every {settings.CELERY_BROKER_HEARTBEAT} s" in PAGE
    assert f"`ETL_TASK_TIMEOUT` of {broker.RABBITMQ_ACK_SECONDS - 30} s and more" in PAGE
    assert [queue.name for queue in settings.CELERY_TASK_QUEUES if f"`{queue.name}`" not in PAGE] == []


@pytest.mark.parametrize(("url", "kind"), [("amqps://u:p@rabbit//", "topic"), ("redis://amqp/0", "direct")])
def test_queue_type_follows_the_broker(url: str, kind: str) -> None:
    """In Redis, a topic exchange would lose messages after Redis was emptied.

    In RabbitMQ, a direct exchange does not support countdowns.
    """
    queue = broker.queue("exports", url=url)
    assert queue.exchange.type == kind
    assert (queue.queue_arguments or {})["x-queue-type"] == "quorum"


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {"cert_reqs": CERT_REQUIRED, "server_hostname": None}),
        ({"ssl_ca_certs": "/ca"}, {"cert_reqs": CERT_REQUIRED, "ca_certs": "/ca", "server_hostname": None}),
        ({"ssl_check_hostname": False}, {"cert_reqs": CERT_REQUIRED}),
        ({"ssl_cert_reqs": CERT_NONE}, {"cert_reqs": CERT_NONE}),
    ],
)
def test_amqps_certificates_are_verified_unless_the_url_disables_it(
    given: dict[str, object], options: dict[str, object]
) -> None:
    assert broker.tls_options(given) == options


def test_rediss_certificates_are_verified_by_default() -> None:
    assert broker.tls("rediss://valkey/0") == {"ssl_cert_reqs": "required"}
    assert broker.tls("redis://valkey/0") is None


@pytest.mark.parametrize(
    ("url", "limit", "ids"),
    [("amqp://u:p@rabbit//", 1799, []), ("amqp://u:p@rabbit//", 1800, ["ops.E103"]), ("redis://valkey/0", 9000, [])],
)
def test_a_task_longer_than_rabbitmqs_timeout_is_an_error(
    settings: LazySettings, url: str, limit: int, ids: list[str]
) -> None:
    settings.SLUICE = settings.SLUICE.model_copy(update={"celery_broker_url": SecretStr(url)})
    settings.ETL_TIME_LIMIT = limit
    settings.CELERY_BROKER_TRANSPORT_OPTIONS = {}
    assert [message.id for message in timeouts.check_redelivery()] == ids
