"""Model-based test of quotas: random sequences of actions of owners, workers, and staff, and of midnight. A2.

The usage of a day is its debits minus its refunds. It is never negative, and a debit never exceeds the limit.
"""

from collections import Counter
from collections.abc import Hashable
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db.models import F
from django.db.models.functions import Now
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from config.platform.db import sql
from exports.core.errors import PermanentSourceError, SourceError
from exports.core.states import Source
from exports.jobs import actions, quotas, submission
from exports.models import Allowance, Chunk, Dataset, Job, Usage
from exports.worker import completion, leases, transitions
from tests.conftest import change_settings
from tests.integration import outcomes
from tests.integration.exports_model import MAX_ATTEMPTS, Model
from tests.integration.factories import claim_one, make_job, result_of
from tests.integration.test_leases_model import clean
from tests.waiting import avoid_midnight

JOBS_A_DAY, CHUNKS_A_DAY = 4, 8


class Quotas(RuleBasedStateMachine):
    """State machine of quotas. An account is a user and a day. Accounts of past days get only refunds."""

    jobs = Bundle("jobs")

    dataset: ClassVar[Dataset]
    owners: ClassVar[list[User]]

    def __init__(self) -> None:
        super().__init__()
        clean()
        Allowance.objects.all().delete()
        self.users = {user.pk: user for user in self.owners}
        self.model = Model(slots=8, caps={})
        self.limit = dict.fromkeys(self.users, CHUNKS_A_DAY)
        self.started: Counter[Hashable] = Counter()
        self.day = 0

    def fits(self, user: int, *, jobs: int, chunks: int) -> bool:
        account = (user, self.day)
        fits = self.model.used[account] + chunks <= self.limit[user]
        return fits and (not jobs or self.started[account] + jobs <= JOBS_A_DAY)

    def owner_of(self, job: UUID) -> int:
        return Job.objects.values_list("user_id", flat=True).get(pk=job)

    @rule(target=jobs, user=st.integers(0, 1), count=st.integers(1, 4), reuse=st.booleans())
    def submit(self, user: int, count: int, *, reuse: bool) -> Any:
        owner = list(self.users.values())[user]
        if not self.fits(owner.pk, jobs=1, chunks=count):
            with pytest.raises(quotas.QuotaExceeded):
                make_job(self.dataset, owner, count)
            return multiple()
        job = make_job(self.dataset, owner, count, reuse="if-present" if reuse else "never")
        return self.accepted(job, owner.pk, reuse=reuse)

    def accepted(self, job: Job, owner: int, *, reuse: bool) -> UUID:
        paths = dict(job.chunks.in_request_order().values_list("pk", "path"))
        self.model.submit(job.pk, self.dataset.pk, paths, reuse=reuse, paid_by=(owner, self.day))
        self.started[owner, self.day] += 1
        return job.pk

    @rule(target=jobs, job=jobs)
    def replay(self, job: UUID) -> Any:
        row, owner = Job.objects.get(pk=job), self.owner_of(job)
        caller = submission.Caller(user_id=owner)
        if not self.fits(owner, jobs=1, chunks=row.total):
            with pytest.raises(quotas.QuotaExceeded):
                actions.replay(row, caller)
            return multiple()
        again, _replayed = actions.replay(row, caller)
        return self.accepted(again, owner, reuse=row.reuse == "if-present")

    @rule(how=st.sampled_from(["live", "live", "refused", "failed", "released"]), late=st.booleans())
    def work(self, how: str, *, late: bool) -> None:
        """Claim a chunk and end it. `late`: report the end a second time."""
        claim = claim_one(backend="test")
        assert (claim is None) == (not self.model.claimable())
        if claim is None:
            return
        pair = (claim.chunk_id, claim.token)
        self.model.claim(*pair)
        for _ in range(1 + late):
            if how == "live":
                outcomes.finish([(claim, result_of(claim))])
                self.model.finish([pair], "live")
            elif how == "released":
                outcomes.release([claim])
                self.model.release([pair], 1)
            else:
                error = PermanentSourceError() if how == "refused" else SourceError()
                delay = transitions.delay_after(claim, error)
                outcomes.fail(claim, error, delay=None if delay is None else 0)
                self.model.fail(*pair, is_final=delay is None)
        for chunk in self.model.chunks.values():
            chunk.is_due |= chunk.status == "retrying"
        Chunk.objects.filter(status="retrying").update(available_at=Now() - timedelta(seconds=1))

    @precondition(lambda self: self.model.reusable_chunks())
    @rule(has_files=st.booleans())
    def reuse_files(self, *, has_files: bool) -> None:
        """Claim reusable chunks. End them as reused, or return them because their files are missing."""
        claims = leases.claim_reusable(batch=2)
        pairs = [(claim.chunk_id, claim.token) for claim in claims]
        for pair in pairs:
            self.model.claim_reusable(*pair)
        if has_files:
            outcomes.finish([(claim, result_of(claim, source=Source.REUSED)) for claim in claims])
            self.model.finish(pairs, "reused")
        else:
            outcomes.release(claims, attempt=0)
            self.model.release(pairs, 0)

    @rule(job=jobs)
    def cancel(self, job: UUID) -> None:
        if self.model.jobs[job].has_ended:
            with pytest.raises(actions.AlreadyEnded):
                actions.cancel(Job.objects.get(pk=job))
        else:
            actions.cancel(Job.objects.get(pk=job))
            self.model.cancel(job)

    @rule(job=jobs)
    def retry(self, job: UUID) -> None:
        row, owner = Job.objects.get(pk=job), self.owner_of(job)
        if self.model.jobs[job].status != "failed":
            with pytest.raises(actions.NotFailed):
                actions.retry(row)
        elif not self.fits(owner, jobs=0, chunks=row.failed):
            with pytest.raises(quotas.QuotaExceeded):
                actions.retry(row)
        else:
            actions.retry(row)
            self.model.retry(job, paid_by=(owner, self.day))

    @rule(job=jobs, number=st.integers(1, 4))
    def lose_files(self, job: UUID, number: int) -> None:
        """Export the first chunks again, because their files are missing when the job is completed."""
        if self.model.can_complete(job):
            token, chunks = completion.claim(job), self.model.jobs[job].chunks[:number]
            values = {"chunks": chunks, "patience": 3600, "attempts": MAX_ATTEMPTS}
            assert sql.scalar(completion.REDO, job=job, token=token, **values) == len(chunks)
            self.model.redo(job, chunks, is_young=True)

    @rule()
    def midnight(self) -> None:
        for days in (1_000, -999):  # via unused days, because (user, day) is unique
            Usage.objects.update(day=F("day") - timedelta(days=days))
        for model in (Job, Chunk):
            model.objects.update(charged_on=F("charged_on") - timedelta(days=1))
        self.day += 1

    @rule(user=st.integers(0, 1), chunks=st.integers(0, 12))
    def allow(self, user: int, chunks: int) -> None:
        """Change a user's limit as staff, possibly to less than the current usage."""
        pk = list(self.users)[user]
        Allowance.objects.update_or_create(user_id=pk, defaults={"daily_chunks": chunks})
        self.limit[pk] = chunks

    @invariant()
    def usage_equals_debits_minus_refunds(self) -> None:
        today = quotas.state(next(iter(self.users))).resets_at.date() - timedelta(days=1)
        rows = {(row.user_id, self.day - (today - row.day).days): (row.jobs, row.chunks) for row in Usage.objects.all()}
        assert rows == {account: (self.started[account], used) for account, used in self.model.used.items()}
        assert all(used >= 0 for used in self.model.used.values())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_usage_matches_the_model_after_any_sequence_of_actions(
    dataset: Dataset, alice: User, bob: User, settings: LazySettings
) -> None:
    avoid_midnight(120)
    limits = {"export_daily_jobs": JOBS_A_DAY, "export_daily_chunks": CHUNKS_A_DAY}
    change_settings(settings, **limits, export_max_attempts=MAX_ATTEMPTS)
    Quotas.dataset, Quotas.owners = dataset, [alice, bob]
    run_state_machine_as_test(Quotas, settings=examples(max_examples=12, stateful_step_count=30))
