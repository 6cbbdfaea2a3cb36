"""Fixtures of security tests: objects of every kind that alice owns, the rows of all tables, and a web process."""

from collections.abc import Callable, Iterator
from ipaddress import ip_network
from typing import Any

import pytest
from django.apps import apps
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.utils import timezone

from config.dev.stack.processes import Web
from config.platform import storage
from config.platform.http.tokens import id_of, of_user
from config.platform.models import AuditEntry, SecondFactor, TokenDetails
from config.platform.webhooks import subscriptions
from config.platform.webhooks.models import EventType
from etl.models import Evaluation, Sample, SampleRun, Task
from etl.pipeline import artifacts, page_images
from exports.jobs.columns import columns_of
from exports.models import Dataset, Delivery
from exports.worker import completion, execution
from rules.library import editing
from tests.broker import lose_messages, valkey
from tests.browser import scenes_documents as scenes
from tests.integration.etl_factories import make_batch
from tests.integration.etl_progress import fail
from tests.integration.factories import make_job
from tests.integration.schedules import make_schedule
from tests.integration.staff import delivered, pages, staff  # noqa: F401 - fixtures
from tests.serving import serving, token_of, variables

SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}}}
RULE_VALUES = {
    "name": "Totals", "description": "", "json_schema": SCHEMA, "system_prompt": "Find the total.",
    "postprocess_mode": "llm", "postprocess_strategy": "",
}  # fmt: skip
RATES = ("export_rate", "export_poll_rate", "export_download_rate", "etl_rate", "etl_poll_rate", "sign_in_rate")

State = dict[str, list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def _high_rates(settings: LazySettings) -> Iterator[None]:
    """Raise the rate limits, which have separate tests, so that a test can request all routes. Allow local webhooks."""
    settings.SLUICE = settings.SLUICE.model_copy(
        update=dict.fromkeys(RATES, "100000/min") | {"export_webhook_allow_cidrs": [ip_network("127.0.0.0/8")]}
    )
    lose_messages()
    valkey().flushdb()
    yield
    lose_messages()


@pytest.fixture
def objects_of_alice(alice: User, dataset: Dataset) -> dict[str, Any]:
    """Create objects of alice, and return values for path parameters by name.

    A route with a new path parameter needs an object here.
    """
    columns_of(dataset)  # as its registration does
    job = make_job(dataset, alice, chunks=2, delivery="manifest")
    execution.drain()
    completion.complete(job.pk)
    hook = subscriptions.create(user_id=alice.pk, url="http://127.0.0.1:9/", events=[EventType.SUCCEEDED.value])
    delivery = Delivery.objects.create(
        webhook=hook, type=EventType.SUCCEEDED.value, body="{}", seq=1, status="failed", finished_at=timezone.now()
    )
    scenes.completed(alice, kind="pdf")
    task = Task.objects.get()
    storage.put(artifacts.answer_key(task), b"{}", content_type=artifacts.TEXT)
    storage.put(page_images.key_of(task, 1, 1240), b"drawn", content_type=page_images.MEDIA_TYPE)
    batch, (of_batch,) = make_batch(alice)
    fail(of_batch)
    rule = editing.create(owner=alice, values=RULE_VALUES)
    sample = Sample.objects.create(rule=rule, task=task, expected={"total": 12.5})
    evaluation = Evaluation.objects.create(rule=rule, number=1, version=1, user=alice, samples=1)
    SampleRun.objects.create(evaluation=evaluation, sample=sample)
    token_of(alice)
    chunk = job.chunks.order_by("seq")[0]
    return {
        "job_id": job.pk,
        "name": dataset.name,
        "key": chunk.key,
        "effective_date": chunk.effective_date,
        "day": chunk.effective_date,
        "schedule_id": make_schedule(alice, dataset).pk,
        "webhook_id": hook.pk,
        "delivery_id": delivery.pk,
        "task_id": task.pk,
        "batch_id": batch.pk,
        "page": 1,
        "rule_id": rule.pk,
        "version": rule.version,
        "sample_id": sample.pk,
        "number": evaluation.number,
        "token_id": id_of(of_user(alice.pk)[0]),
        "factor_id": SecondFactor.objects.create(user=alice, kind="totp", name="App", secret=b"0" * 20).pk,
    }


@pytest.fixture
def state() -> Callable[[], State]:
    """Return a function that returns all rows of our tables, of tokens, and of users."""

    def read() -> State:
        ours = [
            model
            for model in apps.get_models()
            if model._meta.app_label in ("exports", "etl", "rules", "knox", "auth", "platform")
            and model not in (AuditEntry, TokenDetails)  # refused requests change them too
        ]
        return {model._meta.label: list(model._default_manager.order_by("pk").values()) for model in ours}

    return read


# ---- A real web process ---------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def served(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """Run a web process on the test database, for all tests in this folder that need one."""
    root = tmp_path_factory.mktemp("web")
    with serving(root, variables(root)) as running:
        yield running
