"""Resumable, verified downloads of a receipt's file.

A link works once and redirects to a URL of the object storage that is valid for a minute. An interrupted download
resumes with a Range request, and with a new link if the URL has expired. The content is written to
`NAME.<digest>.part` beside the target and renamed once its SHA-256 matches the receipt. The token is sent neither to
the storage nor to links.
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
from sluice.errors import CliError, Exit, Problem, Unreachable

BLOCK_BYTES = 256 * 1024
AWAY_SECONDS = 30.0  # without receiving a byte
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 8.0
STALL_SECONDS = 30.0
FRESH_TRIES = 5  # consecutive links that did not lead to the object


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The expected file of a receipt."""

    job_id: str
    name: str
    size: int
    sha256: str

    @classmethod
    def of(cls, job: dict[str, Any]) -> "Wanted":
        """Read the receipt of a job. Raises CliError if there is nothing to download."""
        receipt, job_id = job.get("receipt"), job["jobId"]
        if not receipt:
            raise CliError(*no_file(job), code=ENDS.get(job["status"], Exit.REFUSED), document=job)
        if receipt["state"] == "expired":
            again = f"Export again, with existing files, with: sluice export replay {job_id}"
            raise CliError("The delivery has expired.", again, code=Exit.NOT_FOUND, document=job)
        # Remove folders and leading dots: hidden files may be read by shells and editors.
        name = PurePath(str(receipt["fileName"]).replace("\\", "/")).name.lstrip(".")
        return cls(
            job_id=job_id,
            name=name if name and name.isprintable() else f"{job_id}.download",
            size=int(receipt["sizeBytes"]),
            sha256=str(receipt["checksum"]).removeprefix("sha256:"),
        )


ENDS = {"failed": Exit.FAILED, "cancelled": Exit.CANCELLED}


def no_file(job: dict[str, Any]) -> tuple[str, ...]:
    job_id = job["jobId"]
    if job["status"] == "failed":
        return "There is no file: the export failed.", f"Show the reason with: sluice export show {job_id}"
    if job["status"] == "cancelled":
        return ("There is no file: the export was cancelled.",)
    return "The export is not finished.", f"Wait for it with: sluice export wait {job_id} --download ."


# ---- Target ---------------------------------------------------------------------------------------------------------


def target_of(output: str, wanted: Wanted) -> Path:
    """Return the file to write: `output`, or a file in it named by the receipt if `output` is a folder."""
    path = Path(output)
    return path / wanted.name if path.is_dir() else path


def already_downloaded(target: Path, wanted: Wanted, *, force: bool) -> bool:
    """Return whether the same file exists. Raises CliError if a different file exists and `force` is off."""
    if not target.exists() or force:
        return False
    if target.is_file() and target.stat().st_size == wanted.size and digest_of(target).hexdigest() == wanted.sha256:
        return True
    raise CliError(f"{target} already exists with other content. Use --force to overwrite it.", code=Exit.USAGE)


def digest_of(path: Path) -> "hashlib._Hash":
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest


# ---- Download -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Download:
    """The download of one file. `moved` is called with the number of bytes received."""

    api: Api
    wanted: Wanted
    link: str | None
    moved: Callable[[int], None]
    may_restart: bool = True  # false for stdout, which cannot be truncated
    url: str = ""  # of the object storage
    digest: Any = field(default_factory=hashlib.sha256)
    at: int = 0
    pause: float = FIRST_PAUSE_SECONDS
    received_at: float = field(default_factory=time.monotonic)  # when the last byte was received

    def into(self, target: Path) -> None:
        """Write the file. On CliError the existing file is unchanged."""
        part = target.with_name(f"{target.name}.{self.wanted.sha256[:8]}.part")
        try:
            resumed = self.resume(part)
            self.fill(part)
            if resumed and not self.is_right:  # the partial file of an earlier run did not match
                self.api.info("The partial download does not match the file. Restarting the download.")
                part.unlink()
                self.restart()
                self.fill(part)
            self.check(part)
            part.replace(target)
        except OSError as error:
            raise CliError(
                f"{error.filename or target} cannot be written: {error.strerror}.", code=Exit.USAGE
            ) from None

    def resume(self, part: Path) -> bool:
        """Continue the partial file of an earlier run. Return whether there was one."""
        if not part.exists():
            return False
        if part.stat().st_size > self.wanted.size:
            part.unlink()
            return False
        self.digest, self.at = digest_of(part), part.stat().st_size
        self.api.info(f"Resuming after {self.at:,} bytes.")
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
                self.back_off(lost(origin(self.url) if self.url else "The link", error), received=self.at > before)
            except StorageRefused as refusal:
                self.url = ""
                self.back_off(refusal, received=self.at > before)

    def read(self, file: BinaryIO) -> None:
        """Read from the current position until the response ends."""
        before = self.at
        with anonymous(self.url or self.fresh()) as client:
            headers = {"Range": f"bytes={self.at}-"} if self.at else {}
            with client.stream("GET", self.url, headers=headers, follow_redirects=True) as response:
                self.api.debug(f"GET {origin(self.url)}/… {response.status_code} from byte {self.at}")
                self.check_place(response, file)
                for (
                    block
                ) in response.iter_raw():  # not in fixed-size blocks: a partial block would be lost on disconnect
                    file.write(block)
                    self.digest.update(block)
                    self.at += len(block)
                    self.moved(self.at)
                    if self.at > self.wanted.size:
                        return
        if self.at == before:
            raise StorageRefused("The object storage sent nothing.")

    def check_place(self, response: httpx2.Response, file: BinaryIO) -> None:
        """Check that the response starts at the current position. Without Range support the whole file is sent."""
        if response.status_code == 200 and self.at:  # noqa: PLR2004
            if not self.may_restart:
                raise CliError("The object storage does not support resuming downloads.", code=Exit.UNREACHABLE)
            file.truncate(0)
            self.restart()
        elif response.status_code == 206:  # noqa: PLR2004
            if not response.headers.get("Content-Range", "").startswith(f"bytes {self.at}-"):
                raise StorageRefused("The object storage sent the wrong part of the file.")
        elif response.status_code != 200:  # noqa: PLR2004
            raise StorageRefused(f"The object storage returned status {response.status_code}.")

    def restart(self) -> None:
        self.digest, self.at = hashlib.sha256(), 0

    def back_off(self, error: CliError, *, received: bool) -> None:
        """Wait before the next attempt, with backoff. Raises the error if no byte was received for too long."""
        now, patience = time.monotonic(), self.api.patience
        if received:
            self.received_at, self.pause = now, FIRST_PAUSE_SECONDS
        if now - self.received_at + self.pause > (AWAY_SECONDS if patience is None else patience):
            error.messages = [*error.messages, "Run the same command again to resume the download."]
            raise error
        self.api.info(f"{error.lines[0]} Resuming at {self.at:,} of {self.wanted.size:,} bytes …")
        time.sleep(self.pause)
        self.pause = min(2 * self.pause, LONGEST_PAUSE_SECONDS)

    # ---- Links ------------------------------------------------------------------------------------------------------

    def fresh(self) -> str:
        """Return a URL of the object, from the receipt's link if it is still valid, otherwise from a new link."""
        for _ in range(FRESH_TRIES):
            link, self.link = self.link or self.mint(), None
            try:
                self.url = redeem(link)
            except Problem as problem:
                if not problem.name.startswith("link_"):
                    raise
                self.api.info(f"The link is no longer valid [{problem.name}]. Creating another one.")
            else:
                return self.url
        raise CliError(
            f"{FRESH_TRIES} new links did not work. Contact the operator of the server.", code=Exit.FORBIDDEN
        )

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

    def mismatch(self) -> CliError:
        return CliError(
            f"The download does not match the receipt: SHA-256 {self.digest.hexdigest()},",
            f"expected {self.wanted.sha256}. It was deleted. Try again, or contact the operator of the server.",
            code=Exit.CHECKSUM,
        )


class StorageRefused(Unreachable):
    """The object storage responded, but not with the file."""


def redeem(link: str) -> str:
    """Redeem a link and return the URL that it redirects to. Raises Problem and httpx2.TransportError."""
    with anonymous(link) as client:
        response = client.get(link)
    if not response.is_redirect:
        raise problem_of(response)
    place = httpx2.URL(link).join(response.headers["Location"])
    if httpx2.URL(link).scheme == "https" and place.scheme != "https":
        raise CliError(
            "The link redirects from https to http. Contact the operator of the server.", code=Exit.UNEXPECTED
        )
    return str(place)


@contextmanager
def anonymous(url: str) -> Iterator[httpx2.Client]:
    """Open a client without the token. A link is bound to the User-Agent of the request that created it."""
    timeout = httpx2.Timeout(STALL_SECONDS)
    headers = {"User-Agent": AGENT, "Accept-Encoding": "identity"}
    with httpx2.Client(headers=headers, timeout=timeout, follow_redirects=False, **reach(url)) as client:
        yield client


def origin(url: str) -> str:
    """Return the scheme and host of a URL; the rest is secret."""
    parsed = httpx2.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode()}"


# ---- Stdout ---------------------------------------------------------------------------------------------------------


def to_stdout(download: Download) -> None:
    """Write to stdout. A wrong checksum is detected only after the content is written, and sets the exit code."""
    download.may_restart = False
    download.to(sys.stdout.buffer)
    sys.stdout.buffer.flush()
    download.check()
