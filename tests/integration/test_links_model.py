"""Model-based test of links with actions of owners, clients, staff, expiry, and cleanup in any order. A22 to A24.

A link is redeemed at most once, and never after its revocation or expiry. A new link revokes the previous one.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db.models.functions import Now
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rest_framework.test import APIClient

from config.platform.storage import StoredObject
from exports.delivery import links, receipts
from exports.delivery.bundles import Bundle as Delivery
from exports.jobs import webhook_events
from exports.maintenance import retention, storage_cleanup
from exports.models import Dataset, Download, Job, Link, Receipt
from exports.worker import completion
from tests.conftest import change_settings
from tests.integration.factories import end_chunk, make_job
from tests.integration.test_leases import in_threads
from tests.integration.test_leases_model import clean

AT_HOME, AWAY = "192.0.2.7", "198.51.100.7"
HOME = links.ClientBinding(network="192.0.2.0/24", agent="")
PREFETCH = {"HTTP_SEC_PURPOSE": "prefetch"}
LINK = st.integers(0, 3)  # the index of a link among those of a receipt
ADDRESS = st.sampled_from([AT_HOME, AT_HOME, AWAY])
BOUND = st.sampled_from([HOME, links.UNBOUND])


@dataclass
class LinkModel:
    path: str
    is_bound: bool
    used: int = 0
    is_revoked: bool = False
    is_expired: bool = False

    @property
    def is_open(self) -> bool:
        return not (self.used or self.is_revoked)


@dataclass
class ReceiptModel:
    links: dict[UUID, LinkModel] = field(default_factory=dict)
    is_expired: bool = False  # the receipt has expired
    is_overdue: bool = False  # it has expired so long ago that its object is due for deletion
    is_deleted: bool = False
    is_purged: bool = False
    attempts: int = 0

    def refuses(self, link: LinkModel, address: str) -> str | None:
        """Return the first reason for refusing the link, in the documented order, or None."""
        if self.is_purged:
            return "link_invalid"
        if link.is_expired or self.is_deleted:
            return "link_expired"
        if link.is_revoked:
            return "link_revoked"
        if link.is_bound and address != AT_HOME:
            return "link_mismatch"
        return "link_used" if link.used else None


class Links(RuleBasedStateMachine):
    receipts = Bundle("receipts")

    dataset: ClassVar[Dataset]
    user: ClassVar[User]

    def __init__(self) -> None:
        super().__init__()
        clean()
        self.model: dict[UUID, ReceiptModel] = {}

    def record(self, receipt: UUID, link: Link) -> None:
        self.model[receipt].links[link.pk] = LinkModel(links.path_of(link), is_bound=bool(link.network))

    def select(self, receipt: UUID, number: int) -> tuple[ReceiptModel, UUID, LinkModel]:
        known = self.model[receipt]
        pk = list(known.links)[number % len(known.links)]
        return known, pk, known.links[pk]

    # ---- Owners
    @initialize(target=receipts, bound=BOUND)
    def begin(self, bound: links.ClientBinding) -> Any:
        return self.issue(bound)

    @precondition(lambda self: len(self.model) < 3)
    @rule(target=receipts, bound=BOUND)
    def issue(self, bound: links.ClientBinding) -> UUID:
        job = make_job(self.dataset, self.user, 1, reuse="never")
        Job.objects.filter(pk=job.pk).update(**bound)
        end_chunk()
        token = completion.claim(job.pk)
        assert token
        stored = StoredObject(key=f"_receipts/{job.pk}/{token}/x.csv", etag="e", size=1, sha256="s")
        delivery = Delivery(stored=stored, content_type="text/csv", file_name="x.csv")
        completion.issue(Job.objects.get(pk=job.pk), token, delivery)
        self.model[job.pk] = ReceiptModel()
        self.record(job.pk, Link.objects.get(receipt=job.pk))
        return job.pk

    @rule(receipt=receipts, bound=BOUND)
    def mint(self, receipt: UUID, bound: links.ClientBinding) -> None:
        known = self.model[receipt]
        if known.is_expired or known.is_purged:
            with pytest.raises(links.ReceiptExpired):
                links.mint(Receipt(pk=receipt), bound)
            return
        fresh = links.mint(Receipt(pk=receipt), bound)
        for link in known.links.values():
            link.is_revoked |= link.is_open
        self.record(receipt, fresh)

    # ---- Clients with a link
    @rule(receipt=receipts, number=LINK, address=ADDRESS)
    def redeem(self, receipt: UUID, number: int, address: str) -> None:
        known, _, link = self.select(receipt, number)
        refused = known.refuses(link, address)
        assert request_link(link, REMOTE_ADDR=address) == (refused or 302)
        link.used += refused is None
        known.attempts += 1

    @rule(receipt=receipts, number=LINK)
    def redeem_together(self, receipt: UUID, number: int) -> None:
        known, _, link = self.select(receipt, number)
        refused = known.refuses(link, AT_HOME)
        answers = Counter(in_threads(3, lambda _: request_link(link, REMOTE_ADDR=AT_HOME)))
        assert answers == ({refused: 3} if refused else {302: 1, "link_used": 2})
        link.used += refused is None
        known.attempts += 3

    @rule(receipt=receipts, number=LINK, address=ADDRESS, how=st.sampled_from(["head", "prefetch"]))
    def preview(self, receipt: UUID, number: int, address: str, how: str) -> None:
        known, _, link = self.select(receipt, number)
        refused = known.refuses(link, address)
        if how == "head":
            assert APIClient().head(link.path, REMOTE_ADDR=address).status_code == (403 if refused else 200)
        else:
            assert request_link(link, REMOTE_ADDR=address, **PREFETCH) == (refused or 204)
        known.attempts += refused is not None

    # ---- Staff
    @rule(receipt=receipts, number=LINK)
    def revoke_link(self, receipt: UUID, number: int) -> None:
        known, pk, link = self.select(receipt, number)
        if known.is_purged or link.is_expired or not link.is_open:
            with pytest.raises(links.LinkNotOpen):
                links.revoke(Link(pk=pk))
        else:
            links.revoke(Link(pk=pk))
            link.is_revoked = True

    @rule(receipt=receipts)
    def revoke_receipt(self, receipt: UUID) -> None:
        known = self.model[receipt]
        if known.is_expired or known.is_purged:
            with pytest.raises(links.ReceiptExpired):
                receipts.revoke(Receipt(pk=receipt))
            return
        receipts.revoke(Receipt(pk=receipt))
        known.is_expired = True
        for link in known.links.values():
            link.is_revoked |= link.is_open

    # ---- Expiry and cleanup
    @rule(receipt=receipts)
    def time_passes(self, receipt: UUID) -> None:
        """Expire the receipt and its links, so long ago that the object is due for deletion."""
        known, past = self.model[receipt], Now() - timedelta(seconds=31)
        Receipt.objects.filter(pk=receipt).update(expires_at=past)
        Link.objects.filter(receipt=receipt).update(expires_at=past)
        known.is_expired = known.is_overdue = True
        for link in known.links.values():
            link.is_expired = True

    @precondition(lambda self: any(known.is_overdue and not known.is_deleted for known in self.model.values()))
    @rule()
    def delete_expired(self) -> None:
        due = [known for known in self.model.values() if known.is_overdue and not known.is_deleted]
        assert storage_cleanup.delete_expired() == len(due)
        for known in due:
            known.is_deleted = True

    @rule(receipt=receipts)
    def purge(self, receipt: UUID) -> None:
        """Purge the job a week later, when the webhook deliveries of its end have been created."""
        webhook_events.fan_out()
        Job.objects.filter(pk=receipt).update(finished_at=Now() - timedelta(days=8))
        retention.purge_jobs()
        for known in self.model.values():
            known.is_purged |= known.is_deleted and known is self.model[receipt]
        Job.objects.update(finished_at=Now())

    # ---- Invariants after each step
    @invariant()
    def links_match_the_model(self) -> None:
        rows = {
            row.pk: (row.used_at is not None, row.revoked_at is not None, bool(row.network))
            for row in Link.objects.all()
        }
        assert rows == {
            pk: (bool(link.used), link.is_revoked, link.is_bound)
            for known in self.model.values()
            if not known.is_purged
            for pk, link in known.links.items()
        }

    @invariant()
    def links_are_redeemed_at_most_once_and_a_receipt_has_one_open_link(self) -> None:
        redeemed = Counter(Download.objects.filter(outcome="redeemed").values_list("link", flat=True))
        for known in self.model.values():
            assert sum(link.is_open for link in known.links.values()) <= 1
            for pk, link in known.links.items():
                assert link.used <= 1
                assert known.is_purged or redeemed[pk] == link.used

    @invariant()
    def every_attempt_is_recorded(self) -> None:
        counts = Counter(Download.objects.values_list("job_id", flat=True))
        for receipt, known in self.model.items():
            assert counts[receipt] == (0 if known.is_purged else known.attempts)


def request_link(link: LinkModel, **client: Any) -> int | str:
    response = APIClient().get(link.path, **client)
    return str(response.json()["code"]) if response.status_code == 403 else response.status_code


@pytest.mark.slow
@pytest.mark.timeout(600)  # Hypothesis shrinks a failure before it reports it
def test_a_link_is_redeemed_at_most_once_after_any_sequence_of_actions(
    dataset: Dataset, alice: User, settings: LazySettings
) -> None:
    change_settings(settings, export_download_rate="100000/min", export_daily_jobs=100_000)
    Links.dataset, Links.user = dataset, alice
    run_state_machine_as_test(Links, settings=examples(max_examples=12, stateful_step_count=30))
