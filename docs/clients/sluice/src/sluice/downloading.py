"""From a receipt to a checked file.

A link works once and leads to a URL of the object storage that is good for a minute. A download that breaks goes on
there, by Range, and with a fresh link when the URL's time is over. The bytes go to `NAME.<digest>.part` beside the
target, which gets its name once they have the receipt's SHA-256. Neither storage nor links ever see the token.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, BinaryIO

import httpx2

from sluice.api import AGENT, Api, lost, problem_of, reach
from sluice.errors import Exit, Problem, Trouble, Unreachable

BLOCK_BYTES = 256 * 1024
AWAY_SECONDS = 30.0  # that may pass without a byte
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 8.0
STALL_SECONDS = 30.0
FRESH_TRIES = 5  # links in a row that did not lead to the object


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a receipt promises."""

    job_id: str
    name: str
    size: int
    sha256: str

    @classmethod
    def of(cls, job: dict[str, Any]) -> "Wanted":
        """Raises Trouble when there is nothing to download."""
        receipt, job_id = job.get("receipt"), job["jobId"]
        if not receipt:
            raise Trouble(*why_nothing(job), code=ENDS.get(job["status"], Exit.REFUSED), document=job)
        if receipt["state"] == "expired":
            again = f"Export again, files that are there are reused: sluice export replay {job_id}"
            raise Trouble("The receipt's time is over.", again, code=Exit.NOT_FOUND, document=job)
        # No folder, and no file that a shell or an editor would read by itself.
        name = PurePath(str(receipt["fileName"]).replace("\\", "/")).name.lstrip(".")
        return cls(
            job_id=job_id,
            name=name if name and name.isprintable() else f"{job_id}.download",
            size=int(receipt["sizeBytes"]),
            sha256=str(receipt["checksum"]).removeprefix("sha256:"),
        )


ENDS = {"failed": Exit.FAILED, "cancelled": Exit.CANCELLED}


def why_nothing(job: dict[str, Any]) -> tuple[str, ...]:
    job_id = job["jobId"]
    if job["status"] == "failed":
        return "There is no file: the export failed.", f"See why: sluice export show {job_id}"
    if job["status"] == "cancelled":
        return ("There is no file: the export was cancelled.",)
    return "There is no file yet.", f"Wait for it: sluice export wait {job_id} --download ."


# ---- Where to -------------------------------------------------------------------------------------------------------


def target_of(output: str, wanted: Wanted) -> Path:
    """Return the file to write: `output`, or the receipt's name in it when it is a folder."""
    path = Path(output)
    return path / wanted.name if path.is_dir() else path


def is_there(target: Path, wanted: Wanted, *, force: bool) -> bool:
    """Whether the very file is there already. Raises Trouble when another one is, and `force` does not allow it."""
    if not target.exists() or force:
        return False
    if target.is_file() and target.stat().st_size == wanted.size and digest_of(target).hexdigest() == wanted.sha256:
        return True
    raise Trouble(f"{target} is there already, and is another file. --force overwrites it.", code=Exit.USAGE)


def digest_of(path: Path) -> "hashlib._Hash":
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest


# ---- How ------------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Download:
    """One file on its way. `moved` is told how many bytes are there."""

    api: Api
    wanted: Wanted
    link: str | None
    moved: Callable[[int], None]
    may_restart: bool = True  # whether what was written can be taken back
    url: str = ""  # of the object storage
    digest: Any = field(default_factory=hashlib.sha256)
    at: int = 0
    pause: float = FIRST_PAUSE_SECONDS
    came: float = field(default_factory=time.monotonic)  # when the last byte did

    def into(self, target: Path) -> None:
        """Write the file, or raise Trouble and leave what was there before."""
        part = target.with_name(f"{target.name}.{self.wanted.sha256[:8]}.part")
        try:
            resumed = self.take_up(part)
            self.fill(part)
            if resumed and not self.is_right:  # what an earlier run has left was no beginning of it
                self.api.say("What was there before does not fit; downloading from the beginning.")
                part.unlink()
                self.begin_anew()
                self.fill(part)
            self.check(part)
            part.replace(target)
        except OSError as error:
            raise Trouble(f"{error.filename or target} cannot be written: {error.strerror}.", code=Exit.USAGE) from None

    def take_up(self, part: Path) -> bool:
        """Go on with what an earlier run has left. Returns whether there was something."""
        if not part.exists():
            return False
        if part.stat().st_size > self.wanted.size:
            part.unlink()
            return False
        self.digest, self.at = digest_of(part), part.stat().st_size
        self.api.say(f"Going on after {self.at:,} bytes that are there already.")
        return self.at > 0

    def fill(self, part: Path) -> None:
        with part.open("ab") as file:
            self.to(file)

    def to(self, file: BinaryIO) -> None:
        while self.at < self.wanted.size:
            before = self.at
            try:
                self.read(file)
            except httpx2.TransportError as error:
                self.rest(lost(origin(self.url) if self.url else "The link", error), came=self.at > before)
            except Unanswered as refusal:
                self.url = ""
                self.rest(refusal, came=self.at > before)

    def read(self, file: BinaryIO) -> None:
        """Read on from where it is, as far as it goes."""
        before = self.at
        with anonymous(self.url or self.fresh()) as client:
            headers = {"Range": f"bytes={self.at}-"} if self.at else {}
            with client.stream("GET", self.url, headers=headers, follow_redirects=True) as response:
                self.api.debug(f"GET {origin(self.url)}/… {response.status_code} from byte {self.at}")
                self.check_place(response, file)
                for block in response.iter_raw():  # as it comes: blocks of a size of ours would be lost half full
                    file.write(block)
                    self.digest.update(block)
                    self.at += len(block)
                    self.moved(self.at)
                    if self.at > self.wanted.size:
                        return
        if self.at == before:
            raise Unanswered("The object storage sent nothing.")

    def check_place(self, response: httpx2.Response, file: BinaryIO) -> None:
        """See that what comes goes on where we are. A storage that does not know Range sends all of it."""
        if response.status_code == 200 and self.at:  # noqa: PLR2004
            if not self.may_restart:
                raise Trouble("The object storage cannot go on in the middle of a file.", code=Exit.UNREACHABLE)
            file.truncate(0)
            self.begin_anew()
        elif response.status_code == 206:  # noqa: PLR2004
            if not response.headers.get("Content-Range", "").startswith(f"bytes {self.at}-"):
                raise Unanswered("The object storage sent another part of the file.")
        elif response.status_code != 200:  # noqa: PLR2004
            raise Unanswered(f"The object storage answered {response.status_code}.")

    def begin_anew(self) -> None:
        self.digest, self.at = hashlib.sha256(), 0

    def rest(self, trouble: Trouble, *, came: bool) -> None:
        """Wait before the next attempt, each time longer. Raises the trouble when nothing has come for too long."""
        now, patience = time.monotonic(), self.api.patience
        if came:
            self.came, self.pause = now, FIRST_PAUSE_SECONDS
        if now - self.came + self.pause > (AWAY_SECONDS if patience is None else patience):
            trouble.says = [*trouble.says, "Run the same command again: it goes on where it was."]
            raise trouble
        self.api.say(f"{trouble.lines[0]} Going on at {self.at:,} of {self.wanted.size:,} bytes …")
        time.sleep(self.pause)
        self.pause = min(2 * self.pause, LONGEST_PAUSE_SECONDS)

    # ---- Links ------------------------------------------------------------------------------------------------------

    def fresh(self) -> str:
        """Return a URL of the object: by the receipt's own link, if it is still good for us, else by a new one."""
        for _ in range(FRESH_TRIES):
            link, self.link = self.link or self.mint(), None
            try:
                self.url = redeem(link)
            except Problem as problem:
                if not problem.name.startswith("link_"):
                    raise
                self.api.say(f"The link does not work any more [{problem.name}]; getting another one.")
            else:
                return self.url
        raise Trouble("None of the links works. Ask the staff.", code=Exit.FORBIDDEN)

    def mint(self) -> str:
        return str(self.api.post(f"/exports/{self.wanted.job_id}/link", repeatable=True)["signedUrl"])

    # ---- The end ----------------------------------------------------------------------------------------------------

    @property
    def is_right(self) -> bool:
        return self.at == self.wanted.size and bool(self.digest.hexdigest() == self.wanted.sha256)

    def check(self, part: Path | None = None) -> None:
        if not self.is_right:
            if part:
                part.unlink()
            raise self.mismatch()

    def mismatch(self) -> Trouble:
        return Trouble(
            f"What came is not what the receipt says: SHA-256 {self.digest.hexdigest()},",
            f"not {self.wanted.sha256}. It was thrown away. Try again; if it stays like this, ask the staff.",
            code=Exit.CHECKSUM,
        )


class Unanswered(Unreachable):
    """The object storage answered, but not with the file."""


def redeem(link: str) -> str:
    """Use a link up and return where it leads. Raises Problem and httpx2.TransportError."""
    with anonymous(link) as client:
        response = client.get(link)
    if not response.is_redirect:
        raise problem_of(response)
    place = httpx2.URL(link).join(response.headers["Location"])
    if httpx2.URL(link).scheme == "https" and place.scheme != "https":
        raise Trouble("The link leads out of https. That is not followed: ask the staff.", code=Exit.UNEXPECTED)
    return str(place)


@contextmanager
def anonymous(url: str) -> Iterator[httpx2.Client]:
    """Give a client without a token. It calls itself like the one that made the link, which is bound to the name."""
    timeout = httpx2.Timeout(STALL_SECONDS)
    headers = {"User-Agent": AGENT, "Accept-Encoding": "identity"}
    with httpx2.Client(headers=headers, timeout=timeout, follow_redirects=False, **reach(url)) as client:
        yield client


def origin(url: str) -> str:
    """Return the scheme and host of a URL: the rest of it is secret."""
    parsed = httpx2.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode()}"


# ---- Stdout ---------------------------------------------------------------------------------------------------------


def to_stdout(download: Download) -> None:
    """Write it to stdout. What came before a wrong end cannot be taken back: the exit code tells."""
    download.may_restart = False
    download.to(sys.stdout.buffer)
    sys.stdout.buffer.flush()
    download.check()
