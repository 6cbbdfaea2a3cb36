"""A4: the header `Idempotency-Key`."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections, transaction
from rest_framework.test import APIClient

from config.platform.http.idempotency import Idempotency, fingerprint
from exports.jobs import actions, submission
from exports.models import Chunk, Dataset, Job, Usage
from exports.worker import completion, execution
from tests.conftest import client_of
from tests.integration.factories import make_job
from tests.integration.test_leases import in_threads

pytestmark = pytest.mark.usefixtures("empty_bucket")

BODY = {"dataset": "things", "items": [{"key": "JFK", "effectiveDate": "2024-02-29"}]}


def post(api: APIClient, key: str, body: Any = None) -> Any:
    return api.post("/exports", body or BODY, headers={"Idempotency-Key": key})


def test_a_repeat_gets_the_first_response_byte_for_byte(api: APIClient, dataset: Dataset, alice: User) -> None:
    """A4."""
    first, again = post(api, "k1"), post(api, "k1")

    assert (first.status_code, again.status_code) == (202, 202)
    assert first.content == again.content
    assert first["Location"] == again["Location"]
    assert "Idempotency-Replayed" not in first
    assert again["Idempotency-Replayed"] == "true"
    assert (Job.objects.count(), Chunk.objects.count(), Usage.objects.get().jobs) == (1, 1, 1)


def test_a_repeat_gets_the_first_response_after_the_job_has_ended(api: APIClient, dataset: Dataset) -> None:
    """A4."""
    first = post(api, "k1")
    execution.drain()
    completion.complete(Job.objects.get().pk)
    assert api.get(first["Location"]).json()["status"] == "success"

    assert post(api, "k1").content == first.content


def test_a_repeat_gets_the_first_response_even_if_the_request_is_no_longer_valid(
    api: APIClient, dataset: Dataset
) -> None:
    """A4: the dataset was changed in the meantime."""
    first = post(api, "k1")
    dataset.formats = ["json"]
    dataset.save()

    assert post(api, "k1").content == first.content


def test_another_body_under_the_same_key_is_422_and_changes_nothing(api: APIClient, dataset: Dataset) -> None:
    """A4."""
    post(api, "k1")
    response = post(api, "k1", {**BODY, "reuse": "never"})

    assert (response.status_code, response.json()["code"]) == (422, "idempotency_key_reused")
    assert Job.objects.count() == Usage.objects.get().jobs == 1


def test_whitespace_and_field_order_are_ignored(api: APIClient, dataset: Dataset) -> None:
    post(api, "k1")
    text = '{ "items": [{"effectiveDate":"2024-02-29",   "key":"JFK"}], "dataset":"things" }'
    response = api.generic("POST", "/exports", text, content_type="application/json", headers={"Idempotency-Key": "k1"})

    assert (response.status_code, response["Idempotency-Replayed"]) == (202, "true")


def test_keys_belong_to_their_user(api: APIClient, dataset: Dataset, bob: User) -> None:
    """A4, A7."""
    mine, theirs = post(api, "k1"), post(client_of(bob), "k1")

    assert theirs.status_code == 202
    assert mine.json()["jobId"] != theirs.json()["jobId"]


def test_a_key_of_a_refused_request_can_be_reused(api: APIClient, dataset: Dataset) -> None:
    """A4: the refused request created nothing, so its response is not stored."""
    assert post(api, "k1", {**BODY, "format": "xml"}).status_code == 400
    assert post(api, "k1").status_code == 202


def test_while_the_first_is_in_flight_the_second_is_409(api: APIClient, dataset: Dataset, alice: User) -> None:
    """A4."""
    body = Idempotency(key="k1", fingerprint=fingerprint(BODY))
    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        body.lock(scope=f"exports/{alice.pk}")  # the first request holds this lock until it commits

        def second() -> Any:
            try:
                return post(api, "k1")
            finally:
                connections.close_all()

        response = pool.submit(second).result()

    assert (response.status_code, response.json()["code"]) == (409, "idempotency_in_flight")
    assert int(response["Retry-After"]) >= 1
    assert not Job.objects.exists()
    assert post(api, "k1").status_code == 202


def test_concurrent_repeats_create_one_job(dataset: Dataset, alice: User) -> None:
    """A4."""
    clients = [client_of(alice) for _ in range(8)]
    responses = in_threads(8, lambda n: post(clients[n], "k1"))

    assert {response.status_code for response in responses} <= {202, 409}
    assert len({response.content for response in responses if response.status_code == 202}) == 1
    assert sum(response.status_code == 202 and "Idempotency-Replayed" not in response for response in responses) == 1
    assert Job.objects.count() == Usage.objects.get().jobs == 1


def test_a_job_that_was_created_in_the_meantime_is_returned(dataset: Dataset, alice: User) -> None:
    """A4: both requests searched for the key before either had created a job."""
    key = Idempotency(key="k1", fingerprint=fingerprint(BODY))
    first = make_job(dataset, alice, 1)

    def read() -> submission.ExportRequest:
        Job.objects.filter(pk=first.pk).update(**key.columns)
        return actions.request_of(first, first.user_id)

    caller = submission.Caller(user_id=alice.pk, idempotency=key)
    assert submission.submit(read, caller) == (first, True)
    assert Job.objects.count() == Usage.objects.get().jobs == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "two words", "umlaut-\xfc"])
def test_an_invalid_key_is_refused(api: APIClient, dataset: Dataset, key: str) -> None:
    """A4."""
    response = post(api, key)

    assert (response.status_code, response.json()["errors"][0]["code"]) == (400, "invalid_idempotency_key")
    assert not Job.objects.exists()
