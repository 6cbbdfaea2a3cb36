"""A simple model of exports, without SQL, clock, and concurrency.

Tests compare it with the rows after each of many steps in any order. Time is a flag: a lease `is_over`, a waiting chunk
`is_due`. Counters are computed, and compared with those of the rows.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from uuid import UUID

ENDED = {"success", "failed", "cancelled"}
WAITS_OR_RUNS = {"pending", "running", "retrying"}
MAX_ATTEMPTS = 2
Account = Hashable  # the user's day that chunks were charged to


@dataclass
class Chunk:
    job: UUID
    dataset: int
    path: str
    reusable: bool = False
    status: str = "pending"
    token: int | None = None
    attempts: int = 0
    charged: bool = True
    source: str = ""
    is_over: bool = False
    is_due: bool = False

    def moved(self, status: str, **changes: object) -> None:
        """Change the status, and clear the fields that only a running chunk has."""
        self.status, self.token, self.is_over, self.is_due = status, None, False, False
        for name, value in changes.items():
            setattr(self, name, value)


@dataclass
class Job:
    dataset: int
    chunks: list[int]
    paid_by: Account = ""
    status: str = "pending"
    ends: list[str] = field(default_factory=list)  # one for each end
    token: int | None = None  # of its completion, like the next three
    attempts: int = 0
    is_leased: bool = False
    is_over: bool = False
    receipts: int = 0

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    def end(self, status: str) -> None:
        self.status, self.token = status, None
        self.ends.append(status)

    def leave_completion(self) -> None:
        self.token, self.is_leased, self.is_over = None, False, False


@dataclass
class Slot:
    """A slot held by a call, and one of its dataset if that has a limit."""

    dataset: int
    is_over: bool = False


@dataclass
class Model:
    slots: int
    caps: dict[int, int]  # by dataset, without unlimited ones
    chunks: dict[int, Chunk] = field(default_factory=dict)
    jobs: dict[UUID, Job] = field(default_factory=dict)
    held: dict[int, Slot] = field(default_factory=dict)  # by token
    files: set[str] = field(default_factory=set)
    used: Counter[Account] = field(default_factory=Counter)

    # ---- Questions
    def count(self, job: UUID) -> Counter[str]:
        return Counter(self.chunks[pk].status for pk in self.jobs[job].chunks)

    def has_room(self, dataset: int) -> bool:
        """Return whether a call into this dataset may begin."""
        of_it = sum(slot.dataset == dataset for slot in self.held.values())
        return len(self.held) < self.slots and of_it < self.caps.get(dataset, self.slots)

    def claimable(self) -> set[int]:
        return {
            pk
            for pk, chunk in self.chunks.items()
            if self.has_room(chunk.dataset)
            and ((chunk.status == "pending" and not chunk.reusable) or (chunk.status == "retrying" and chunk.is_due))
        }

    def to_look_at(self) -> set[int]:
        return {pk for pk, chunk in self.chunks.items() if chunk.status == "pending" and chunk.reusable}

    def is_held_by(self, pk: int, token: int) -> bool:
        chunk = self.chunks.get(pk)
        return chunk is not None and chunk.token == token

    def lost(self) -> set[int]:
        return {pk for pk, chunk in self.chunks.items() if chunk.status == "running" and chunk.is_over}

    def slots_of_the_lost(self) -> set[int]:
        running = {chunk.token for chunk in self.chunks.values()}
        return {token for token, slot in self.held.items() if slot.is_over and token not in running}

    def can_complete(self, job: UUID) -> bool:
        this = self.jobs[job]
        is_whole = self.count(job)["done"] == len(this.chunks)
        return is_whole and not this.has_ended and not (this.is_leased and not this.is_over)

    # ---- Jobs
    def submit(self, job: UUID, dataset: int, paths: dict[int, str], *, reuse: bool, paid_by: Account = "") -> None:
        """`paths`: of the chunks, by their ids."""
        for pk, path in paths.items():
            self.chunks[pk] = Chunk(job, dataset, path, reusable=reuse and path in self.files)
        self.jobs[job] = Job(dataset, list(paths), paid_by)
        self.used[paid_by] += len(paths)

    # ---- Claims
    def claim(self, pk: int, token: int) -> None:
        chunk = self.chunks[pk]
        was_retrying = chunk.status == "retrying"
        chunk.moved("running", token=token, attempts=chunk.attempts + 1)
        self.held[token] = Slot(chunk.dataset)
        job = self.jobs[chunk.job]
        if job.status == "pending" or was_retrying:
            job.status = "retrying" if self.count(chunk.job)["retrying"] else "running"

    def add_to_batch(self, pk: int, token: int) -> None:
        self.chunks[pk].moved("running", token=token, attempts=self.chunks[pk].attempts + 1)

    def look(self, pk: int, token: int) -> None:
        chunk = self.chunks[pk]
        chunk.moved("running", token=token)
        if self.jobs[chunk.job].status == "pending":
            self.jobs[chunk.job].status = "running"

    # ---- Outcomes
    def settle(self, job: UUID) -> None:
        """Apply the common part of every outcome."""
        counts, this = self.count(job), self.jobs[job]
        if counts["failed"] and not WAITS_OR_RUNS & counts.keys():
            this.end("failed")
        else:
            this.status = "retrying" if counts["retrying"] else "running"

    def finish(self, held: list[tuple[int, int]], source: str) -> int:
        """End the chunks that these tokens still hold, release all their slots, and return the number of chunks."""
        ours = [self.chunks[pk] for pk, token in held if self.is_held_by(pk, token)]
        self.give_back([token for _, token in held])
        for chunk in ours:
            chunk.moved("done", source=source)
            if source == "live":
                self.files.add(chunk.path)
            else:
                self.refund([chunk])
        for job in {chunk.job for chunk in ours}:
            self.settle(job)
        return len(ours)

    def fail(self, pk: int, token: int, *, is_final: bool) -> bool:
        is_ours = self.is_held_by(pk, token)
        self.give_back([token])
        if is_ours:
            self.end_attempt(pk, "failed" if is_final else "retrying")
        return is_ours

    def release(self, held: list[tuple[int, int]], attempt: int) -> None:
        ours = [self.chunks[pk] for pk, token in held if self.is_held_by(pk, token)]
        self.give_back([token for _, token in held])
        for chunk in ours:
            chunk.moved("pending", reusable=False, attempts=max(chunk.attempts - attempt, 0))
        for job in {chunk.job for chunk in ours}:
            self.settle(job)

    def take_back(self, pk: int) -> str:
        """Requeue a chunk whose lease was lost or withdrawn. Its slot stays taken."""
        self.chunks[pk].reusable = False
        return self.end_attempt(pk, "failed" if self.chunks[pk].attempts >= MAX_ATTEMPTS else "pending")

    def end_attempt(self, pk: int, status: str) -> str:
        chunk = self.chunks[pk]
        chunk.moved(status)
        if status == "failed":
            self.refund([chunk])
        self.settle(chunk.job)
        return status

    def refund(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self.used[self.jobs[chunk.job].paid_by] -= chunk.charged

    def give_back(self, tokens: list[int]) -> None:
        for token in tokens:
            self.held.pop(token, None)

    # ---- User actions
    def cancel(self, job: UUID) -> int:
        ended = [chunk for pk in self.jobs[job].chunks if (chunk := self.chunks[pk]).status in WAITS_OR_RUNS]
        for chunk in ended:
            chunk.moved("cancelled")
        self.refund(ended)
        self.jobs[job].end("cancelled")
        self.jobs[job].leave_completion()
        return len(ended)

    def retry(self, job: UUID, *, paid_by: Account = "") -> int:
        again = [chunk for pk in self.jobs[job].chunks if (chunk := self.chunks[pk]).status == "failed"]
        for chunk in again:
            chunk.moved("pending", attempts=0, reusable=False, charged=True)
        if again:
            self.jobs[job].paid_by = paid_by
            self.used[paid_by] += len(again)
        self.jobs[job].status, self.jobs[job].attempts = "running", 0
        self.jobs[job].leave_completion()
        return len(again)

    def redo(self, job: UUID, pks: list[int], *, is_young: bool) -> int:
        """Requeue done chunks whose files are missing. For a young job, this costs no attempt."""
        self.jobs[job].attempts -= is_young
        for pk in pks:
            chunk = self.chunks[pk]
            was_reused = chunk.source == "reused"
            chunk.moved("pending", attempts=0, reusable=False, source="", charged=chunk.charged and not was_reused)
        self.jobs[job].leave_completion()
        return len(pks)
