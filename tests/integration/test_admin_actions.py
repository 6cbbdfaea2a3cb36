"""C2: staff actions on rows. They need a confirmation by POST, report their results, are logged, and are idempotent."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from pydantic import SecretStr

from config.platform.admin import confirmed_actions
from config.platform.heartbeat import LeaseLost
from exports.delivery import links
from exports.maintenance import lost_leases
from exports.models import Allowance, Chunk, Dataset, Delivery, File, Job, Link, Receipt, Slot, Webhook
from exports.worker import leases
from tests.broker import lose_messages, queued
from tests.conftest import browser_of, change_settings
from tests.integration import outcomes
from tests.integration.factories import fail_chunk, make_job, result_of
from tests.integration.staff import confirm, fail, form_in, list_of, messages_of, page_of, press, select, text_of
from tests.integration.test_leases import claim

LONG_AGO = "2000-01-01T00:00:00Z"


def records() -> set[tuple[str | None, str]]:
    return set(LogEntry.objects.values_list("object_id", "change_message"))


# ---- Confirmation ---------------------------------------------------------------------------------------------------
def test_confirmations_list_affected_and_skipped_rows_with_reasons(
    pages: Client, failed: Job, dataset: Dataset, alice: User
) -> None:
    fine = make_job(dataset, alice, chunks=1, key="LGA")

    response = select(pages, "retry", failed, fine)

    words = " ".join(text_of(response).split())
    assert "This will change 1 export of 2 exports selected." in words
    assert "Unchanged: 1 export" in words
    assert "This export has not failed. Only failed exports can be retried." in words
    assert json.loads(form_in(response)[1]["selection"])[0][0] == str(failed.pk)
    assert Job.objects.get(pk=failed.pk).status == "failed"
    assert not LogEntry.objects.exists()


def test_get_requests_change_nothing(pages: Client, failed: Job, delivered: Receipt) -> None:
    before = [list(model.objects.order_by("pk").values()) for model in (Job, Chunk, Link, Receipt, File)]
    for row, verb in (
        (failed, "retry"), (failed, "replay"), (delivered, "revoke"), (Link.objects.get(), "revoke"),
        (File.objects.get(), "invalidate"), (failed.chunks.filter(status="failed").first(), "retry"),
    ):  # fmt: skip
        action, _ = form_in(pages.get(page_of(row, verb)))
        assert pages.get(action).status_code == 405
    assert [list(model.objects.order_by("pk").values()) for model in (Job, Chunk, Link, Receipt, File)] == before


def test_a_page_has_only_applicable_buttons(pages: Client, failed: Job, dataset: Dataset, alice: User) -> None:
    pending = make_job(dataset, alice, chunks=1, key="EWR")
    for job, present, absent in ((failed, "retry", "cancel"), (pending, "cancel", "retry")):
        text = text_of(pages.get(page_of(job)))
        assert f'href="{page_of(job, present)}"' in text
        assert page_of(job, absent) not in text


def test_it_skips_selected_rows_beyond_the_limit(pages: Client, failed: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """C2: only the processed rows are read, however many are selected."""
    monkeypatch.setattr(confirmed_actions, "MAX_ROWS", 1)
    chunks = list(failed.chunks.order_by("-pk"))

    with CaptureQueriesContext(connection) as queries:
        response = select(pages, "retry", chunks[0], select_across="1")

    words = " ".join(text_of(response).split())
    assert "You selected more than 1 items. This applies to the first 1 in list order." in words
    reads = [
        query["sql"] for query in queries if 'SELECT "exports_chunk"' in query["sql"] and "LIMIT 2" in query["sql"]
    ]
    assert len(reads) == 1
    action, fields = form_in(response)
    three = json.dumps([[str(chunk.pk), ""] for chunk in chunks])
    assert pages.post(action, fields | {"selection": three}).status_code == 400


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    ["", "no json", "[1]", '[["nonsense", ""]]', '[["\\u0000", ""]]', "{}[]", "[" * 200_000, f"[]{' ' * 2_000_000}"],
    ids=range(8),
)
def test_an_invalid_form_is_refused(pages: Client, failed: Job, chosen: str) -> None:
    action, fields = form_in(pages.get(page_of(failed, "retry")))

    assert pages.post(action, fields | {"selection": chosen}).status_code == 400
    assert Job.objects.get(pk=failed.pk).status == "failed"


def test_actions_redirect_only_to_their_origin(pages: Client, failed: Job) -> None:
    url = list_of("job", status__exact="failed")
    chosen = {"action": "retry", "_selected_action": [failed.pk], "select_across": "0", "index": "0"}
    assert confirm(pages, pages.post(url, chosen))["Location"] == url
    action, fields = form_in(pages.get(page_of(failed, "replay")))
    assert pages.post(action, fields | {"back": "https://example.org/"})["Location"] == list_of("job")


# ---- Jobs -----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_it_retries_selected_jobs_and_logs_the_action(
    pages: Client, staff: User, failed: Job, dataset: Dataset, alice: User
) -> None:
    another, fine = make_job(dataset, alice, chunks=2, key="EWR"), make_job(dataset, alice, chunks=1, key="LGA")
    fail(another, chunks=1)
    action, fields = form_in(select(pages, "retry", failed, another, fine))
    both = json.loads(fields["selection"])

    response = pages.post(action, fields | {"selection": json.dumps([*both, [str(fine.pk), ""]])})

    assert messages_of(response) == [
        "Retried 2 exports.",
        "Unchanged: 1 export. This export has not failed. Only failed exports can be retried.",
    ]
    assert set(Job.objects.values_list("status", "failed")) == {("running", 0), ("pending", 0)}
    assert Chunk.objects.filter(status="pending").count() == 4
    assert records() == {
        (str(failed.pk), "Retried: 2 failed chunks queued."),
        (str(another.pk), "Retried: 1 failed chunk queued."),
    }
    assert set(LogEntry.objects.values_list("user_id", flat=True)) == {staff.pk}
    assert "2 failed chunks queued" in text_of(pages.get(page_of(failed, "history")))
    assert "2 failed chunks queued" in text_of(pages.get("/admin/admin/logentry/"))


def test_a_repeated_action_does_nothing(pages: Client, failed: Job) -> None:
    action, fields = form_in(pages.get(page_of(failed, "retry")))
    pages.post(action, fields)
    fail(failed, chunks=1)  # the job has failed again before the second request arrives

    response = pages.post(action, fields)

    assert messages_of(response)[-1] == "Unchanged: 1 export. Changed since you selected it."
    assert LogEntry.objects.count() == 1
    assert Job.objects.get(pk=failed.pk).status == "failed"


def test_it_retries_a_failed_delivery_without_chunks(pages: Client, failed: Job) -> None:
    fail(failed, chunks=0)

    assert messages_of(press(pages, failed, "retry")) == ["Retried 1 export. Delivery queued; no chunks had failed."]


def test_it_refuses_a_retry_over_the_owner_s_quota_with_the_reason(pages: Client, failed: Job, alice: User) -> None:
    Allowance.objects.create(user=alice, daily_chunks=0)

    (words,) = messages_of(press(pages, failed, "retry"))
    assert words.startswith("Unchanged: 1 export. The owner's quota: This needs 2 chunks, and 0 of today's 0 are left.")
    assert Job.objects.get(pk=failed.pk).status == "failed"
    assert not LogEntry.objects.exists()


def test_it_cancels_jobs(pages: Client, dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, chunks=2)

    assert messages_of(press(pages, job, "cancel")) == ["Cancelled 1 export. 2 chunks cancelled."]
    assert Job.objects.get().status == "cancelled"
    assert records() == {(str(job.pk), "Cancelled: 2 chunks cancelled.")}


def test_a_replay_creates_one_job_for_the_owner(pages: Client, failed: Job, alice: User) -> None:
    """The new job has the owner of the old one, and its link is bound to the same client."""
    Job.objects.filter(pk=failed.pk).update(network="192.0.2.0/24", agent="0123456789abcdef")
    action, fields = form_in(pages.get(page_of(failed, "replay")))

    first, second = pages.post(action, fields), pages.post(action, fields)

    new = Job.objects.exclude(pk=failed.pk).get()
    assert (new.user, new.total, new.network, new.agent) == (alice, 3, "192.0.2.0/24", "0123456789abcdef")
    assert messages_of(first) == [f"Replayed 1 export. New export {new.pk}."]
    assert messages_of(second)[-1] == f"Unchanged: 1 export. Already replayed as export {new.pk}."
    assert records() == {(str(failed.pk), f"Replayed: New export {new.pk}.")}


def test_a_long_action_stops_at_its_deadline_and_reports_the_rest(
    pages: Client, failed: Job, dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the broker is unavailable, each row takes two seconds."""
    another = make_job(dataset, alice, chunks=1, key="EWR")
    fail(another, chunks=1)
    monkeypatch.setattr(confirmed_actions, "TIME_LIMIT_SECONDS", -1.0)

    response = confirm(pages, select(pages, "retry", failed, another))

    assert messages_of(response)[1] == "Unchanged: 1 export. Time limit reached. Repeat the action for these."
    assert Job.objects.filter(status="failed").count() == LogEntry.objects.count() == 1


# ---- Chunks ---------------------------------------------------------------------------------------------------------
def test_it_retries_single_chunks_of_a_failed_job(pages: Client, failed: Job, alice: User) -> None:
    first, second = failed.chunks.filter(status="failed").order_by("seq")

    assert messages_of(press(pages, first, "retry")) == ["Retried 1 chunk. Queued with a full set of attempts."]

    failed.refresh_from_db()
    assert (failed.status, failed.failed, failed.error_code) == ("running", 1, "EXPORT_SOURCE_ERROR")
    assert set(failed.chunks.values_list("seq", "status")) == {(0, "pending"), (1, "failed"), (2, "done")}
    assert records() == {(str(first.pk), "Retried: Queued with a full set of attempts.")}
    assert "The export has not ended." in text_of(pages.get(page_of(second, "retry")))

    done = claim()
    outcomes.finish([(done, result_of(done))])
    failed.refresh_from_db()
    assert (failed.status, failed.done, failed.failed, failed.error_code) == ("failed", 2, 1, "EXPORT_SOURCE_ERROR")


def test_it_retries_chunks_of_several_jobs(pages: Client, failed: Job, dataset: Dataset, alice: User) -> None:
    another = make_job(dataset, alice, chunks=2, key="EWR")
    fail(another, chunks=2)
    chosen = list(Chunk.objects.filter(status="failed"))

    assert messages_of(confirm(pages, select(pages, "retry", *chosen))) == ["Retried 4 chunks."]
    assert set(Job.objects.values_list("status", "failed", "error_code")) == {("running", 0, "")}
    assert LogEntry.objects.count() == 4


def test_it_releases_the_chunk_of_a_lost_worker_immediately(pages: Client, dataset: Dataset, alice: User) -> None:
    """C2, A11, A13: the previous holder is fenced off, and its slot is held until its call has ended."""
    make_job(dataset, alice, chunks=1)
    held = claim()
    lose_messages()

    response = press(pages, Chunk.objects.get(), "release")

    assert messages_of(response) == ["Released 1 chunk. The chunk is queued again."]
    assert queued("exports") == 1
    assert records() == {(str(held.chunk_id), "Released: The chunk is queued again.")}
    again = claim()
    assert (again.chunk_id, again.attempts) == (held.chunk_id, 2)
    assert Slot.objects.held().count() == 2
    with pytest.raises(LeaseLost):
        leases.renew(held)
    Slot.objects.filter(token=held.token).update(lease_until=LONG_AGO)
    lost_leases.free_slots()
    assert Slot.objects.held().get().token == again.token
    assert outcomes.finish([(held, result_of(held))]) is None
    leases.renew(again)


def test_a_repeated_release_does_not_affect_the_next_worker(pages: Client, dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, chunks=1)
    claim()
    action, fields = form_in(pages.get(page_of(Chunk.objects.get(), "release")))
    pages.post(action, fields)
    next_claim = claim()

    assert messages_of(pages.post(action, fields))[-1] == "Unchanged: 1 chunk. Changed since you selected it."
    leases.renew(next_claim)


def test_a_lease_is_withdrawn_only_from_the_displayed_holder(dataset: Dataset, alice: User) -> None:
    """A11: even if the row has changed since it was read."""
    make_job(dataset, alice, chunks=1)
    first = claim()
    assert lost_leases.withdraw(first.chunk_id, token=first.token)
    second = claim()

    assert lost_leases.withdraw(first.chunk_id, token=first.token) is None
    leases.renew(second)


def test_a_chunk_without_attempts_left_fails_when_it_is_released(
    pages: Client, dataset: Dataset, alice: User, settings: Any
) -> None:
    change_settings(settings, export_max_attempts=1)
    job = make_job(dataset, alice, chunks=1)
    claim()

    assert messages_of(press(pages, Chunk.objects.get(), "release")) == [
        "Released 1 chunk. No attempts left: the chunk failed."
    ]
    job.refresh_from_db()
    assert (job.status, job.error_code) == ("failed", "EXPORT_WORKER_LOST")


def test_a_failed_chunk_of_a_cancelled_job_is_not_retried(pages: Client, dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, chunks=2)
    fail_chunk()
    press(pages, job, "cancel")
    chunk = job.chunks.get(status="failed")
    assert Job.objects.get().status == "cancelled"
    assert "The export was cancelled. Replay the export instead." in text_of(pages.get(page_of(chunk, "retry")))


# ---- Files, receipts, links, slots ----------------------------------------------------------------------------------
def test_an_invalidated_file_is_not_reused(pages: Client, delivered: Receipt, dataset: Dataset, alice: User) -> None:
    file = File.objects.get()
    assert make_job(dataset, alice, chunks=1).chunks.get().reusable

    assert messages_of(press(pages, file, "invalidate")) == ["Invalidated 1 file. Exports no longer reuse it."]

    assert not make_job(dataset, alice, chunks=1).chunks.get().reusable
    assert records() == {(file.path, "Invalidated: Exports no longer reuse it.")}


def test_a_file_replaced_in_the_meantime_is_not_invalidated(pages: Client, delivered: Receipt) -> None:
    action, fields = form_in(pages.get(page_of(File.objects.get(), "invalidate")))
    File.objects.update(etag="of a later file")

    assert messages_of(pages.post(action, fields)) == ["Unchanged: 1 file. Changed since you selected it."]
    assert File.objects.exists()


def test_a_revoked_link_is_unusable_and_can_be_replaced(pages: Client, delivered: Receipt, settings: Any) -> None:
    link = Link.objects.get()
    unknown_client = links.LinkClient(address=None, user_agent="")

    assert messages_of(press(pages, link, "revoke")) == ["Revoked 1 link. The link is revoked."]

    with pytest.raises(links.LinkUnusable, match="link_revoked"):
        links.redeem(delivered.pk, links.token_of(link), unknown_client)
    assert links.mint(delivered).pk != link.pk
    assert "Only a link that still works can be revoked" in text_of(pages.get(page_of(link, "revoke")))


def test_an_unusable_link_is_not_revoked(delivered: Receipt) -> None:
    """A22: its history does not change."""
    link = Link.objects.get()
    links.redeem(delivered.pk, links.token_of(link), links.LinkClient(address=None, user_agent=""))

    with pytest.raises(links.LinkNotOpen):
        links.revoke(link)
    link.refresh_from_db()
    assert link.revoked_at is None


def test_a_revoked_receipt_yields_no_download(pages: Client, delivered: Receipt) -> None:
    link = Link.objects.get()

    response = press(pages, delivered, "revoke")

    assert messages_of(response) == [
        "Revoked 1 receipt. Its link is revoked, and its object is deleted within a minute."
    ]
    with pytest.raises(links.LinkUnusable):
        links.redeem(delivered.pk, links.token_of(link), links.LinkClient(address=None, user_agent=""))
    with pytest.raises(links.ReceiptExpired):
        links.mint(delivered)
    Receipt.objects.update(expires_at=timezone.now() - timedelta(minutes=1))
    assert Receipt.objects.due_for_deletion().get() == delivered


def test_a_slot_is_released_only_after_its_call_has_ended(pages: Client, dataset: Dataset, alice: User) -> None:
    """A13: not while its worker may still be running."""
    make_job(dataset, alice, chunks=1)
    held = claim()
    slot = Slot.objects.held().get()
    action, fields = form_in(pages.get(page_of(slot, "release")))
    assert fields["selection"] == "[]"
    chosen = json.dumps([[str(slot.pk), str(slot.token)]])
    assert messages_of(pages.post(action, fields | {"selection": chosen}))[-1].startswith(
        "Unchanged: 1 source call. The worker that"
    )

    lost_leases.withdraw(held.chunk_id, token=held.token)
    Slot.objects.filter(pk=slot.pk).update(lease_until=LONG_AGO)

    assert messages_of(press(pages, slot, "release"))[-1].startswith("Released 1 source call. Call terminated")
    assert not Slot.objects.held().exists()


def test_a_slot_is_held_while_the_source_is_unavailable(
    pages: Client, dataset: Dataset, alice: User, settings: Any
) -> None:
    """A13."""
    make_job(dataset, alice, chunks=1)
    held = claim()
    lost_leases.withdraw(held.chunk_id, token=held.token)
    Slot.objects.held().update(lease_until=LONG_AGO)
    slot = Slot.objects.held().get()
    change_settings(settings, source_database_url=SecretStr("postgresql://sluice@127.0.0.1:1/none"))

    (words,) = messages_of(press(pages, slot, "release"))

    assert words.startswith("Unchanged: 1 source call. The source database did not respond")
    assert Slot.objects.held().exists()


# ---- Permissions ----------------------------------------------------------------------------------------------------
@pytest.fixture
def viewer(transactional_db: None) -> Client:
    """A browser of a user who may view everything but not change anything."""
    user = User.objects.create_user("vera", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    return browser_of(user)


@pytest.mark.slow
def test_view_permission_does_not_allow_actions(viewer: Client, pages: Client, failed: Job, delivered: Receipt) -> None:
    hook = Webhook.objects.create(user=failed.user, url="https://a.example", events=[], secret="x", enabled=False)
    delivery = Delivery.objects.create(webhook=hook, type="webhook.test", body="{}", status="failed")
    rows: list[tuple[Any, str]] = [
        (failed, "retry"), (failed, "replay"), (failed, "cancel"), (failed.chunks.first(), "retry"),
        (failed.chunks.first(), "release"), (File.objects.get(), "invalidate"), (delivered, "revoke"),
        (Link.objects.get(), "revoke"), (Slot.objects.first(), "release"), (hook, "enable"), (hook, "disable"),
        (delivery, "redeliver"),
    ]  # fmt: skip
    for row, verb in rows:
        action, fields = form_in(pages.get(page_of(row, verb)))
        assert page_of(row, verb) not in text_of(viewer.get(page_of(row)))
        assert viewer.get(page_of(row, verb)).status_code == 403
        assert viewer.post(action, fields).status_code == 403
        assert select(viewer, verb, row).status_code in (200, 302)
        assert f'value="{verb}"' not in text_of(viewer.get(list_of(row._meta.label_lower.replace(".", "_"))))
    assert not LogEntry.objects.exists()
    assert Job.objects.get(pk=failed.pk).status == "failed"


def test_other_users_are_sent_to_the_login(failed: Job, alice: User) -> None:
    client = browser_of(alice)
    for url in (page_of(failed, "retry"), reverse("admin:exports_job_do_retry")):
        assert client.post(url, {"selection": f'[["{failed.pk}", ""]]'})["Location"].startswith("/admin/login/")
    assert Job.objects.get(pk=failed.pk).status == "failed"


def test_actions_require_a_csrf_token(staff: User, failed: Job) -> None:
    client = browser_of(staff, enforce_csrf_checks=True)
    action, fields = form_in(client.get(page_of(failed, "retry")))

    assert client.post(action, {"selection": fields["selection"]}).status_code == 403
    assert client.post(action, fields).status_code == 302


def test_wrong_ids_match_no_row(pages: Client, slots: int) -> None:
    # Django redirects to the index with a message.
    assert pages.get("/admin/exports/job/nonsense/change/").status_code == 302
    assert pages.get("/admin/exports/job/nonsense/retry/").status_code == 404


def test_an_invalid_nonce_is_refused(pages: Client, failed: Job) -> None:
    action, fields = form_in(pages.get(page_of(failed, "replay")))
    assert pages.post(action, fields | {"nonce": "\0"}).status_code == 400
    assert Job.objects.count() == 1
