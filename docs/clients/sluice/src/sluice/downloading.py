"""Resumable, verified downloads of exported files.

A link works once and redirects to a URL of the object storage that is valid for a minute. An interrupted download
resumes with a Range request, and with a new link if the URL has expired. The content is written to
`NAME.<digest>.part` beside the target and renamed when its SHA-256 matches the receipt. The token is not sent to links
or to the object storage.
"""

import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import IO, Any

import httpx2

from sluice.api import AGENT, Api, log, origin, problem_of, proxy_options, unreachable
from sluice.errors import (
    ChecksumMismatch,
    InvalidResponse,
    NoFile,
    Problem,
    SluiceError,
    TargetExists,
    Unreachable,
)
from sluice.models import Export
from sluice.network import BLOCK_BYTES, Network

AWAY_SECONDS = 30.0  # without a received byte, until the download fails
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 8.0
STALL_SECONDS = 30.0
MAX_LINKS = 5  # links that are tried in a row, if each is no longer valid


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedFile:
    """The file of a receipt. `link`: None if it was used or has expired."""

    export_id: str
    name: str
    size: int
    sha256: str
    link: str | None = field(repr=False)

    @classmethod
    def of(cls, export: Export) -> "ExpectedFile":
        """Read the receipt of an export. Raises NoFile if there is nothing to download."""
        receipt = export.receipt
        if not receipt:
            raise NoFile(export, NO_FILE.get(export.status, "The export is not finished."))
        if receipt.state == "expired":
            raise NoFile(export, "The delivery has expired.")
        # Remove folders and leading dots: hidden files may be read by shells and editors.
        name = PurePath(receipt.file_name.replace("\\", "/")).name.lstrip(".")
        return cls(
            export_id=export.id,
            name=name if name and name.isprintable() else f"{export.id}.download",
            size=receipt.size_bytes,
            sha256=receipt.checksum.removeprefix("sha256:"),
            link=receipt.signed_url,
        )


NO_FILE = {
    "failed": "There is no file: the export failed.",
    "cancelled": "There is no file: the export was cancelled.",
}


# ---- Target ---------------------------------------------------------------------------------------------------------


def target_of(output: str | Path, wanted: ExpectedFile) -> Path:
    """Return the path to write: `output` or, if that is a folder, the receipt's file name in it.

    A path that ends with a slash is a folder, which is created.
    """
    path = Path(output)
    if str(output).endswith("/"):
        path.mkdir(parents=True, exist_ok=True)
    return path / wanted.name if path.is_dir() else path


def already_downloaded(target: Path, wanted: ExpectedFile, *, overwrite: bool) -> bool:
    """Return whether the same file exists. Raises TargetExists if a different file exists and `overwrite` is off."""
    if not target.exists() or overwrite:
        return False
    if target.is_file() and target.stat().st_size == wanted.size and digest_of(target).hexdigest() == wanted.sha256:
        return True
    raise TargetExists(f"{target} already exists with other content.")


def digest_of(path: Path) -> "hashlib._Hash":
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest


# ---- Download -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Download:
    """The download of one file. `on_progress` is called with the number of received bytes and the size."""

    api: Api
    wanted: ExpectedFile
    on_progress: Callable[[int, int], None]
    may_restart: bool = True  # false for a stream, which cannot be truncated
    link: str | None = None
    url: str = ""  # of the object storage
    digest: Any = field(default_factory=hashlib.sha256)
    at: int = 0
    pause: float = FIRST_PAUSE_SECONDS
    received_at: float = field(default_factory=time.monotonic)  # when the last byte was received

    def __post_init__(self) -> None:
        self.link = self.wanted.link

    async def into(self, target: Path) -> None:
        """Write the file. On an error, an existing file is unchanged. Raises OSError if the file cannot be written."""
        part = target.with_name(f"{target.name}.{self.wanted.sha256[:8]}.part")
        resumed = await self.api.network.call(self.resume, part)
        await self.fill(part)
        if resumed and not self.is_verified:  # the partial file of an earlier run did not match
            log.info("The partial download does not match the file. Restarting the download.")
            part.unlink()
            self.restart()
            await self.fill(part)
        self.check(part)
        part.replace(target)

    def resume(self, part: Path) -> bool:
        """Continue the partial file of an earlier run. Return whether there was one."""
        if not part.exists():
            return False
        if part.stat().st_size > self.wanted.size:
            part.unlink()
            return False
        self.digest, self.at = digest_of(part), part.stat().st_size
        log.info("Resuming after %s bytes.", f"{self.at:,}")
        return self.at > 0

    async def fill(self, part: Path) -> None:
        with part.open("ab") as file:
            await self.write_to(file)

    async def write_to(self, file: IO[bytes]) -> None:
        self.on_progress(self.at, self.wanted.size)
        while self.at < self.wanted.size:
            before = self.at
            try:
                await self.read(file)
            except httpx2.TransportError as error:
                failure = unreachable(origin(self.url) if self.url else "The link", error)
                await self.back_off(failure, received=self.at > before)
            except UnexpectedStorageResponse as refusal:
                self.url = ""
                await self.back_off(refusal, received=self.at > before)

    async def read(self, file: IO[bytes]) -> None:
        """Read from the current position until the response ends."""
        before, network = self.at, self.api.network
        self.url = self.url or await self.new_url()
        async with anonymous(network, self.url, follow_redirects=True) as http:
            headers = {"Range": f"bytes={self.at}-"} if self.at else {}
            response = await network.send(http, http.build_request("GET", self.url, headers=headers))
            try:
                log.debug("GET %s/… %d from byte %d", origin(self.url), response.status_code, self.at)
                self.check_position(response, file)
                # Blocks have any size: with a fixed size, a partial block would be lost on a disconnect.
                async for block in network.blocks(response, raw=True):
                    await network.call(self.write, file, block)
                    self.on_progress(self.at, self.wanted.size)
                    if self.at > self.wanted.size:
                        return
            finally:
                await network.close(response)
        if self.at == before:
            raise UnexpectedStorageResponse("The object storage sent an empty response.")

    def write(self, file: IO[bytes], block: bytes) -> None:
        file.write(block)
        self.digest.update(block)
        self.at += len(block)

    def check_position(self, response: httpx2.Response, file: IO[bytes]) -> None:
        """Check that the response starts at the current position. Without Range support, it is the whole file."""
        if response.status_code == 200 and self.at:  # noqa: PLR2004
            if not self.may_restart:
                raise Unreachable("The object storage does not support resuming downloads.")
            file.truncate(0)
            self.restart()
        elif response.status_code == 206:  # noqa: PLR2004
            if not response.headers.get("Content-Range", "").startswith(f"bytes {self.at}-"):
                raise UnexpectedStorageResponse("The object storage sent the wrong part of the file.")
        elif response.status_code != 200:  # noqa: PLR2004
            raise UnexpectedStorageResponse(f"The object storage returned status {response.status_code}.")

    def restart(self) -> None:
        self.digest, self.at = hashlib.sha256(), 0

    async def back_off(self, error: SluiceError, *, received: bool) -> None:
        """Wait before the next attempt, with backoff. Raises the error if no byte has been received for too long."""
        now, patience = time.monotonic(), self.api.patience
        if received:
            self.received_at, self.pause = now, FIRST_PAUSE_SECONDS
        if now - self.received_at + self.pause > (AWAY_SECONDS if patience is None else patience):
            raise error
        log.info("%s Resuming at %s of %s bytes …", error, f"{self.at:,}", f"{self.wanted.size:,}")
        await self.api.network.sleep(self.pause)
        self.pause = min(2 * self.pause, LONGEST_PAUSE_SECONDS)

    # ---- Links ------------------------------------------------------------------------------------------------------

    async def new_url(self) -> str:
        """Return a URL of the object, from the receipt's link if it is still valid, otherwise from a new link."""
        tries = MAX_LINKS
        while True:
            link, self.link = self.link or await self.create_link(), None
            try:
                return await redeem(self.api.network, link)
            except Problem as problem:
                tries -= 1
                if not tries or not problem.code.startswith("link_"):
                    raise
                log.info("The link is no longer valid [%s]. Creating another one.", problem.code)

    async def create_link(self) -> str:
        link = await self.api.post(f"/exports/{self.wanted.export_id}/link", repeatable=True)
        return str(link["signedUrl"])

    # ---- Verification -----------------------------------------------------------------------------------------------

    @property
    def is_verified(self) -> bool:
        return self.at == self.wanted.size and bool(self.digest.hexdigest() == self.wanted.sha256)

    def check(self, part: Path | None = None) -> None:
        if not self.is_verified:
            if part:
                part.unlink()
            raise ChecksumMismatch(
                f"The download does not match the receipt: SHA-256 {self.digest.hexdigest()},\n"
                f"expected {self.wanted.sha256}. It was deleted. Try again, or contact the operator of the server."
            )


class UnexpectedStorageResponse(Unreachable):
    """The object storage responded, but not with the file."""


async def redeem(network: Network, link: str) -> str:
    """Redeem a link and return the URL that it redirects to. Raises Problem and httpx2.TransportError."""
    async with anonymous(network, link) as http:
        response = await network.send(http, http.build_request("GET", link))
        try:
            await network.read(response)
        finally:
            await network.close(response)
    if not response.is_redirect:
        raise problem_of(response)
    place = httpx2.URL(link).join(response.headers["Location"])
    if httpx2.URL(link).scheme == "https" and place.scheme != "https":
        raise InvalidResponse("The link redirects from https to http. Contact the operator of the server.")
    return str(place)


@asynccontextmanager
async def anonymous(
    network: Network, url: str, *, timeout: float = STALL_SECONDS, follow_redirects: bool = False
) -> AsyncIterator[Any]:
    """Open an HTTP client that does not send the token. Links are bound to this User-Agent."""
    headers = {"User-Agent": AGENT, "Accept-Encoding": "identity"}
    http = network.client(
        headers=headers, timeout=httpx2.Timeout(timeout), follow_redirects=follow_redirects, **proxy_options(url)
    )
    try:
        yield http
    finally:
        await network.close(http)
