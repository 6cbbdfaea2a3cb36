"""Model-based test of claims, outcomes, cleanup, completion, and user actions in any order. I1, I3, I4, I7.

After each step, the rows are compared with a model. Six actors share three slots. Each can be suspended for longer than
its lease, and can continue at any later step, with claims that it still holds or has lost.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from config.platform.db import sql
from config.platform.heartbeat import LeaseLost
from config.platform.storage import StoredObject
from exports.core.errors import ExportError, PermanentSourceError, SourceError
from exports.core.states import Source
from exports.delivery.bundles import Bundle as Delivery
from exports.jobs import actions
from exports.maintenance import lost_leases
from exports.models import Chunk, Dataset, Event, Job, Receipt, Slot, Usage
from exports.worker import completion, leases, transitions
from exports.worker.leases import Claim
from tests.broker import lose_messages
from tests.conftest import change_settings
from tests.integration import outcomes
from tests.integration.exports_model import ENDED, MAX_ATTEMPTS, Model
from tests.integration.factories import claim_one, make_job, result_of

SLOTS, CAP = 3, 1
HOUR = 3600  # so long that no lease or backoff ends during an example
LONG_AGO = Now() - timedelta(seconds=1)
LEFTOVERS = (
    *("exports_delivery", "exports_event", "exports_download", "exports_link", "exports_receipt"),
    *("exports_chunk", "exports_file", "exports_jobs", "exports_usage"),
)


def clean() -> None:
    """Delete the rows of earlier examples."""
    with connection.cursor() as cursor:
        cursor.execute(";".join(f"DELETE FROM {table}" for table in LEFTOVERS))
        cursor.execute(
            "UPDATE exports_slot SET token = NULL, lease_until = NULL, job_id = NULL, chunk_id = NULL, backend = ''"
        )
    lose_messages()
    # Claims alternate by this sequence, and examples must be repeatable.
    sql.scalar("SELECT setval('exports_turn_seq', 1)")


@dataclass(frozen=True)
class Held:
    """Claims that an actor has made, and may have lost: chunks to export, or chunks whose files it checks."""

    claims: tuple[Claim, ...]
    is_call: bool

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return [(claim.chunk_id, claim.token) for claim in self.claims]


@dataclass(frozen=True)
class Completing:
    job: UUID
    token: int


class Exports(RuleBasedStateMachine):
    holds = Bundle("holds")
    completings = Bundle("completings")
    jobs = Bundle("jobs")

    datasets: ClassVar[list[Dataset]]
    user: ClassVar[User]

    def __init__(self) -> None:
        super().__init__()
        clean()
        caps = {each.pk: each.max_concurrency for each in self.datasets if each.max_concurrency}
        self.model = Model(slots=SLOTS, caps=caps)
        self.last_token = 0

    def row(self, job: UUID) -> Job:
        return Job.objects.get(pk=job)

    # ---- Jobs
    @initialize(target=jobs)
    def begin(self) -> Any:
        return self.submit(dataset=0, count=3, reuse="if-present")

    @precondition(lambda self: len(self.model.jobs) < 5)
    @rule(
        target=jobs,
        dataset=st.integers(0, 1),
        count=st.integers(1, 3),
        reuse=st.sampled_from(["if-present", "if-present", "never"]),
    )
    def submit(self, dataset: int, count: int, reuse: str) -> UUID:
        row = make_job(self.datasets[dataset], self.user, count, reuse=reuse)
        paths = dict(row.chunks.in_request_order().values_list("pk", "path"))
        self.model.submit(row.pk, row.dataset_id, paths, reuse=reuse == "if-present")
        return row.pk

    @rule(job=jobs)
    def cancel(self, job: UUID) -> None:
        if self.model.jobs[job].has_ended:
            with pytest.raises(actions.AlreadyEnded):
                actions.cancel(self.row(job))
        else:
            assert actions.cancel(self.row(job)) == self.model.cancel(job)

    @rule(job=jobs)
    def retry(self, job: UUID) -> None:
        if self.model.jobs[job].status != "failed":
            with pytest.raises(actions.NotFailed):
                actions.retry(self.row(job))
        else:
            assert actions.retry(self.row(job)) == self.model.retry(job)

    # ---- Actors
    def take(self, claims: list[Claim]) -> None:
        assert all(claim.token > self.last_token for claim in claims)
        self.last_token = max([claim.token for claim in claims], default=self.last_token)

    @rule(target=holds, actor=st.integers(1, 6))
    def claim(self, actor: int) -> Any:
        free = self.model.claimable()
        claim = claim_one(backend=f"actor-{actor}")
        if claim is None:
            assert not free
            return multiple()
        assert claim.chunk_id in free
        self.take([claim])
        self.model.claim(claim.chunk_id, claim.token)
        assert claim.attempts == self.model.chunks[claim.chunk_id].attempts
        return Held((claim,), is_call=True)

    @rule(target=holds, actor=st.integers(1, 6), size=st.integers(1, 3))
    def claim_batch(self, actor: int, size: int) -> Any:
        free = self.model.claimable()
        sizes = {each.name: size for each in self.datasets}
        claims = leases.claim_batch(backend=f"actor-{actor}", sizes=sizes)
        assert bool(claims) == bool(free)
        if not claims:
            return multiple()
        assert claims[0].chunk_id in free
        assert len(claims) <= size
        assert len({claim.job_id for claim in claims}) == len({claim.token for claim in claims}) == 1
        assert {claim.attempts for claim in claims[1:]} <= {1}
        self.take(claims)
        self.model.claim(claims[0].chunk_id, claims[0].token)
        for claim in claims[1:]:
            self.model.add_to_batch(claim.chunk_id, claim.token)
        return Held(tuple(claims), is_call=True)

    @precondition(lambda self: self.model.reusable_chunks())
    @rule(target=holds)
    def check_files(self) -> Any:
        free = self.model.reusable_chunks()
        claims = leases.claim_reusable(batch=2)
        assert {claim.chunk_id for claim in claims} <= free
        assert 1 <= len(claims) <= 2
        assert len({claim.job_id for claim in claims}) == 1
        self.take(sorted(claims, key=lambda claim: claim.token))
        for claim in claims:
            self.model.claim_reusable(claim.chunk_id, claim.token)
        return Held(tuple(claims), is_call=False)

    @rule(held=holds)
    def suspend_workers(self, held: Held) -> None:
        """Suspend workers past their leases."""
        tokens = [token for _, token in held.pairs]
        Chunk.objects.filter(token__in=tokens).update(lease_until=LONG_AGO)
        Slot.objects.filter(token__in=tokens).update(lease_until=LONG_AGO)
        for chunk in self.model.chunks.values():
            chunk.is_over |= chunk.token in tokens
        for token in self.model.held.keys() & tokens:
            self.model.held[token].is_over = True

    @rule(held=holds)
    def renew(self, held: Held) -> None:
        claim = held.claims[0]
        if not self.model.is_held_by(claim.chunk_id, claim.token):
            with pytest.raises(LeaseLost):
                leases.renew(claim)
            return
        leases.renew(claim)
        self.model.chunks[claim.chunk_id].is_over = False
        if claim.token in self.model.held:
            self.model.held[claim.token].is_over = False

    @rule(held=holds)
    def finish(self, held: Held) -> None:
        source = Source.LIVE if held.is_call else Source.REUSED
        progress = outcomes.finish([(claim, result_of(claim, source=source)) for claim in held.claims])
        ended = self.model.finish(held.pairs, source)
        assert (progress.chunks if progress else 0) == ended
        if progress:
            counts = self.model.count(progress.job_id)
            assert progress.all_done == (counts["done"] == counts.total())

    @rule(held=holds, error=st.sampled_from([SourceError(), PermanentSourceError()]))
    def fail(self, held: Held, error: ExportError) -> None:
        claim = held.claims[0]
        delay = transitions.delay_after(claim, error)
        assert (delay is None) == (not error.retryable or claim.attempts >= MAX_ATTEMPTS)
        progress = outcomes.fail(claim, error, delay=None if delay is None else HOUR)
        assert (progress is not None) == self.model.fail(*held.pairs[0], is_final=delay is None)

    @rule(held=holds)
    def release(self, held: Held) -> None:
        outcomes.release(list(held.claims), attempt=int(held.is_call))
        self.model.release(held.pairs, int(held.is_call))

    @precondition(lambda self: any(chunk.status == "retrying" for chunk in self.model.chunks.values()))
    @rule()
    def end_backoffs(self) -> None:
        Chunk.objects.filter(status="retrying").update(available_at=LONG_AGO)
        for chunk in self.model.chunks.values():
            chunk.is_due |= chunk.status == "retrying"

    # ---- Cleanup
    @rule()
    def reclaim(self) -> None:
        lost = self.model.lost_chunks()
        assert {each.id: each.status for each in lost_leases.reclaim_batch(batch=100)} == {
            pk: self.model.requeue(pk) for pk in lost
        }

    @rule(held=holds)
    def withdraw(self, held: Held) -> None:
        """End a lease on behalf of staff who saw this token."""
        pk, token = held.pairs[0]
        lost = lost_leases.withdraw(pk, token=token)
        assert (lost is not None) == self.model.is_held_by(pk, token)
        if lost:
            assert lost.status == self.model.requeue(pk)

    @rule()
    def free_slots(self) -> None:
        tokens = [token for token, _ in lost_leases.expired_slots()]
        assert set(tokens) == self.model.slots_of_lost_chunks()
        transitions.free_slots(tokens)
        self.model.free_slots(tokens)

    # ---- Completion
    @rule(target=completings, job=jobs)
    def claim_completion(self, job: UUID) -> Any:
        this = self.model.jobs[job]
        may = self.model.can_complete(job)
        assert (job in completion.unclaimed_jobs()) == may
        token = completion.claim(job)
        assert (token is not None) == (may and this.attempts < MAX_ATTEMPTS)
        if token is None:
            return multiple()
        assert token > self.last_token
        self.last_token = token
        this.token, this.attempts, this.is_leased, this.is_over = token, this.attempts + 1, True, False
        return Completing(job, token)

    def is_current(self, completing: Completing) -> bool:
        return self.model.jobs[completing.job].token == completing.token

    @rule(completing=completings)
    def suspend_completion(self, completing: Completing) -> None:
        if self.model.jobs[completing.job].is_leased:
            Job.objects.filter(pk=completing.job).update(completion_lease_until=LONG_AGO)
            self.model.jobs[completing.job].is_over = True

    @rule(completing=completings)
    def renew_completion(self, completing: Completing) -> None:
        if self.is_current(completing):
            completion.renew(completing.job, completing.token)
            self.model.jobs[completing.job].is_over = False
        else:
            with pytest.raises(LeaseLost):
                completion.renew(completing.job, completing.token)

    @rule(completing=completings)
    def issue(self, completing: Completing) -> None:
        key = f"_receipts/{completing.job}/{completing.token}/x.zip"
        stored = StoredObject(key=key, etag="e", size=1, sha256="s")
        delivery = Delivery(stored=stored, content_type="application/zip", file_name="x.zip")
        issue = partial(completion.issue, self.row(completing.job), completing.token, delivery)
        if not self.is_current(completing):
            with pytest.raises(LeaseLost):
                issue()
            return
        issue()
        this = self.model.jobs[completing.job]
        this.end("success")
        this.reset_completion()
        this.receipts += 1
        assert Receipt.objects.get(pk=completing.job).object_key == key

    @rule(completing=completings)
    def fail_completion(self, completing: Completing) -> None:
        is_current, this = self.is_current(completing), self.model.jobs[completing.job]
        completion.fail(self.row(completing.job), completing.token, "failed")
        if is_current:
            this.token, this.is_over = None, False
            if this.attempts >= MAX_ATTEMPTS:
                this.end("failed")

    @rule(completing=completings)
    def leave_completion(self, completing: Completing) -> None:
        """Release a completion, as a worker that receives SIGTERM does."""
        gone = sql.scalar(completion.RELEASE, job=completing.job, token=completing.token)
        assert (gone is not None) == self.is_current(completing)
        if gone:
            self.model.jobs[completing.job].reset_completion()
            self.model.jobs[completing.job].attempts -= 1

    @rule(completing=completings, number=st.integers(1, 3), is_young=st.booleans())
    def lose_files(self, completing: Completing, number: int, is_young: bool) -> None:  # noqa: FBT001
        job = self.model.jobs[completing.job]
        values = {"chunks": job.chunks[:number], "patience": 3600 if is_young else 0, "attempts": MAX_ATTEMPTS}
        redone = sql.scalar(completion.REDO, job=completing.job, token=completing.token, **values)
        may = self.is_current(completing) and (is_young or job.attempts < MAX_ATTEMPTS)
        assert redone == (self.model.redo(completing.job, job.chunks[:number], is_young=is_young) if may else None)

    @rule()
    def fail_exhausted(self) -> None:
        completion.fail_exhausted()
        for pk, job in self.model.jobs.items():
            if self.model.can_complete(pk) and job.attempts >= MAX_ATTEMPTS:
                job.end("failed")

    # ---- Invariants after each step
    @invariant()
    def chunks_match_the_model(self) -> None:
        names = ("status", "token", "attempts", "reusable", "charged", "source")
        rows = {row.pop("pk"): row for row in Chunk.objects.values("pk", *names)}
        assert rows == {pk: {name: getattr(chunk, name) for name in names} for pk, chunk in self.model.chunks.items()}

    @invariant()
    def held_slots_are_within_the_limit_and_match_the_model(self) -> None:
        held = Slot.objects.held()
        for_all = [slot.token or 0 for slot in held.filter(dataset=None)]
        over = held.filter(lease_until__lt=Now()).values_list("token", flat=True)
        assert set(over) == {token for token, slot in self.model.held.items() if slot.is_over}
        assert sorted(for_all) == sorted(self.model.held)
        assert len(for_all) <= SLOTS
        for dataset, cap in self.model.caps.items():
            tokens = [slot.token or 0 for slot in held.filter(dataset=dataset)]
            assert sorted(tokens) == sorted(t for t, slot in self.model.held.items() if slot.dataset == dataset)
            assert len(tokens) <= cap

    @invariant()
    def jobs_count_their_chunks_and_end_once(self) -> None:
        ends: dict[UUID, list[str]] = {}
        for job, status in (
            Event.objects.filter(kind="status", status__in=ENDED).order_by("seq").values_list("job_id", "status")
        ):
            ends.setdefault(job, []).append(status)
        files = Counter(Receipt.objects.values_list("pk", flat=True))
        for row in Job.objects.all():
            this, counts = self.model.jobs[row.pk], self.model.count(row.pk)
            assert row.status == this.status
            for status in ("done", "failed", "cancelled", "retrying"):
                assert getattr(row, status) == counts[status], status
            done = [chunk for pk in this.chunks if (chunk := self.model.chunks[pk]).status == "done"]
            assert row.reused == sum(chunk.source == "reused" for chunk in done)
            assert row.rows == 3 * len(done)
            assert (row.completion_token, row.completion_attempts) == (this.token, this.attempts)
            assert row.has_ended == (row.finished_at is not None)
            assert ends.get(row.pk, []) == this.ends
            assert files[row.pk] == this.receipts == (row.status == "success")

    @invariant()
    def usage_equals_debits_minus_refunds(self) -> None:
        assert sum(Usage.objects.values_list("chunks", flat=True)) == self.model.used.total()


@pytest.mark.slow
@pytest.mark.timeout(600)  # Hypothesis shrinks a failure before it reports it
def test_rows_match_the_model_after_any_sequence_of_actions(
    dataset: Dataset, alice: User, settings: LazySettings
) -> None:
    hours = dict.fromkeys(("lease_seconds", "backoff_base_seconds", "backoff_max_seconds"), HOUR)
    changes = {"db_slots": SLOTS, "max_attempts": MAX_ATTEMPTS, **hours}
    change_settings(settings, **({f"export_{name}": value for name, value in changes.items()}))
    capped = Dataset.objects.create(name="few", function="data.rows_for", base_path="few", max_concurrency=CAP)
    Exports.datasets, Exports.user = [dataset, capped], alice
    run_state_machine_as_test(Exports, settings=examples(max_examples=20, stateful_step_count=50))
