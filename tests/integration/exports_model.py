"""A simple model of exports, without SQL, clocks, or concurrency, for model-based tests.

Tests run many random steps, and compare the model with the database after each. Time is represented by flags: a lease
`is_over`, a waiting chunk `is_due`. The model computes its counters, which are compared with those of the rows.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from uuid import UUID

ENDED = {"success", "failed", "cancelled"}
WAITS_OR_RUNS = {"pending", "running", "retrying"}
MAX_ATTEMPTS = 2
Account = Hashable  # a user and a day, to whose quota chunks are charged


@dataclass
class Chunk:
    job: UUID
    dataset: int
    path: str
    paid_by: Account = ""
    reusable: bool = False
    status: str = "pending"
    token: int | None = None
    attempts: int = 0
    charged: bool = True
    source: str = ""
    is_over: bool = False
    is_due: bool = False

    def set_status(self, status: str, **changes: object) -> None:
        """Change the status, and clear the fields that only a running chunk has."""
        self.status, self.token, self.is_over, self.is_due = status, None, False, False
        for name, value in changes.items():
            setattr(self, name, value)


@dataclass
class Job:
    dataset: int
    chunks: list[int]
    status: str = "pending"
    ends: list[str] = field(default_factory=list)  # the status of each end
    token: int | None = None  # of the completion, as are the next three fields
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

    def reset_completion(self) -> None:
        self.token, self.is_leased, self.is_over = None, False, False


@dataclass
class Slot:
    """A slot that a call holds, together with a slot of its dataset, if the dataset has a limit."""

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

    # ---- Queries
    def count(self, job: UUID) -> Counter[str]:
        return Counter(self.chunks[pk].status for pk in self.jobs[job].chunks)

    def has_room(self, dataset: int) -> bool:
        """Return whether a call to the function of this dataset may begin."""
        of_it = sum(slot.dataset == dataset for slot in self.held.values())
        return len(self.held) < self.slots and of_it < self.caps.get(dataset, self.slots)

    def claimable(self) -> set[int]:
        return {
            pk
            for pk, chunk in self.chunks.items()
            if self.has_room(chunk.dataset)
            and ((chunk.status == "pending" and not chunk.reusable) or (chunk.status == "retrying" and chunk.is_due))
        }

    def reusable_chunks(self) -> set[int]:
        return {pk for pk, chunk in self.chunks.items() if chunk.status == "pending" and chunk.reusable}

    def is_held_by(self, pk: int, token: int) -> bool:
        chunk = self.chunks.get(pk)
        return chunk is not None and chunk.token == token

    def lost_chunks(self) -> set[int]:
        return {pk for pk, chunk in self.chunks.items() if chunk.status == "running" and chunk.is_over}

    def slots_of_lost_chunks(self) -> set[int]:
        running = {chunk.token for chunk in self.chunks.values()}
        return {token for token, slot in self.held.items() if slot.is_over and token not in running}

    def can_complete(self, job: UUID) -> bool:
        this = self.jobs[job]
        is_whole = self.count(job)["done"] == len(this.chunks)
        return is_whole and not this.has_ended and not (this.is_leased and not this.is_over)

    # ---- Jobs
    def submit(self, job: UUID, dataset: int, paths: dict[int, str], *, reuse: bool, paid_by: Account = "") -> None:
        """Add a job. `paths`: the paths of its chunks, by chunk ID."""
        for pk, path in paths.items():
            self.chunks[pk] = Chunk(job, dataset, path, paid_by, reusable=reuse and path in self.files)
        self.jobs[job] = Job(dataset, list(paths))
        self.used[paid_by] += len(paths)

    # ---- Claims
    def claim(self, pk: int, token: int) -> None:
        chunk = self.chunks[pk]
        was_retrying = chunk.status == "retrying"
        chunk.set_status("running", token=token, attempts=chunk.attempts + 1)
        self.held[token] = Slot(chunk.dataset)
        job = self.jobs[chunk.job]
        if job.status == "pending" or was_retrying:
            job.status = "retrying" if self.count(chunk.job)["retrying"] else "running"

    def add_to_batch(self, pk: int, token: int) -> None:
        self.chunks[pk].set_status("running", token=token, attempts=self.chunks[pk].attempts + 1)

    def claim_reusable(self, pk: int, token: int) -> None:
        chunk = self.chunks[pk]
        chunk.set_status("running", token=token)
        if self.jobs[chunk.job].status == "pending":
            self.jobs[chunk.job].status = "running"

    # ---- Outcomes
    def update_job(self, job: UUID) -> None:
        """Update the status of a job after any outcome of a chunk."""
        counts, this = self.count(job), self.jobs[job]
        if counts["failed"] and not WAITS_OR_RUNS & counts.keys():
            this.end("failed")
        else:
            this.status = "retrying" if counts["retrying"] else "running"

    def finish(self, held: list[tuple[int, int]], source: str) -> int:
        """Finish the chunks that these tokens still hold, and free all their slots. Return the number of chunks."""
        ours = [self.chunks[pk] for pk, token in held if self.is_held_by(pk, token)]
        self.free_slots([token for _, token in held])
        for chunk in ours:
            chunk.set_status("done", source=source)
            if source == "live":
                self.files.add(chunk.path)
            else:
                self.refund([chunk])
        for job in {chunk.job for chunk in ours}:
            self.update_job(job)
        return len(ours)

    def fail(self, pk: int, token: int, *, is_final: bool) -> bool:
        is_ours = self.is_held_by(pk, token)
        self.free_slots([token])
        if is_ours:
            self.end_attempt(pk, "failed" if is_final else "retrying")
        return is_ours

    def release(self, held: list[tuple[int, int]], attempt: int) -> None:
        ours = [self.chunks[pk] for pk, token in held if self.is_held_by(pk, token)]
        self.free_slots([token for _, token in held])
        for chunk in ours:
            chunk.set_status("pending", reusable=False, attempts=max(chunk.attempts - attempt, 0))
        for job in {chunk.job for chunk in ours}:
            self.update_job(job)

    def requeue(self, pk: int) -> str:
        """Requeue a chunk whose lease was lost or withdrawn. Its slot is not freed."""
        self.chunks[pk].reusable = False
        return self.end_attempt(pk, "failed" if self.chunks[pk].attempts >= MAX_ATTEMPTS else "pending")

    def end_attempt(self, pk: int, status: str) -> str:
        chunk = self.chunks[pk]
        chunk.set_status(status)
        if status == "failed":
            self.refund([chunk])
        self.update_job(chunk.job)
        return status

    def refund(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self.used[chunk.paid_by] -= chunk.charged

    def free_slots(self, tokens: list[int]) -> None:
        for token in tokens:
            self.held.pop(token, None)

    # ---- User actions
    def cancel(self, job: UUID) -> int:
        ended = [chunk for pk in self.jobs[job].chunks if (chunk := self.chunks[pk]).status in WAITS_OR_RUNS]
        for chunk in ended:
            chunk.set_status("cancelled")
        self.refund(ended)
        self.jobs[job].end("cancelled")
        self.jobs[job].reset_completion()
        return len(ended)

    def retry(self, job: UUID, *, paid_by: Account = "") -> int:
        failed = [chunk for pk in self.jobs[job].chunks if (chunk := self.chunks[pk]).status == "failed"]
        for chunk in failed:
            chunk.set_status("pending", attempts=0, reusable=False, charged=True, paid_by=paid_by)
        if failed:
            self.used[paid_by] += len(failed)
        self.jobs[job].status, self.jobs[job].attempts = "running", 0
        self.jobs[job].reset_completion()
        return len(failed)

    def redo(self, job: UUID, pks: list[int], *, is_young: bool) -> int:
        """Requeue finished chunks whose files are missing. For a young job, this does not use an attempt."""
        self.jobs[job].attempts -= is_young
        for pk in pks:
            chunk = self.chunks[pk]
            was_reused = chunk.source == "reused"
            chunk.set_status("pending", attempts=0, reusable=False, source="", charged=chunk.charged and not was_reused)
        self.jobs[job].reset_completion()
        return len(pks)
