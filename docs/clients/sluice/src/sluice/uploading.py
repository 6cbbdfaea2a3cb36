"""File uploads to the service, or directly to the object storage."""

import mimetypes
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import httpx2

from sluice.api import Api, log, origin
from sluice.downloading import anonymous
from sluice.errors import Unreachable

ROOT = "/api/v1/etl"
UPLOAD_SECONDS, UPLOAD_TRIES = 60.0, 3


def type_of(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def part_of(path: Path, opened: ExitStack) -> tuple[str, IO[bytes], str]:
    """Return the part of a multipart form for a file."""
    return path.name, opened.enter_context(path.open("rb")), type_of(path.name)


async def upload(api: Api, path: Path) -> str:
    """Upload a file to the object storage, without the token. Return its file key. Raises Unreachable."""
    size = path.stat().st_size
    # The server detects the type from the content, not from the file name.
    offer = {"filename": path.name, "content_type": "application/octet-stream", "size": size}
    place = await api.post(f"{ROOT}/uploads", offer, repeatable=True)
    url, headers = place["upload_url"], {**place["headers"], "Content-Length": str(size)}
    async with anonymous(api.network, url, timeout=UPLOAD_SECONDS) as http:
        for _ in range(UPLOAD_TRIES):
            with path.open("rb") as file, suppress(httpx2.TransportError):
                request = http.build_request("PUT", url, content=api.network.upload(file), headers=headers)
                response = await api.network.send(http, request)
                await api.network.close(response)
                log.debug("PUT %s/… %d", origin(url), response.status_code)
                if response.is_success:
                    return str(place["file_key"])
                break
            await api.pause(1)
    raise Unreachable(f"The upload to the object storage at {origin(url)} failed.")


async def send(api: Api, path: str, files: Iterable[Path], fields: dict[str, Any], *, key: str | None) -> Any:
    """Send files in a multipart form. The idempotency key makes it safe to repeat the request."""
    data = {name: str(value) for name, value in fields.items()}
    with ExitStack() as opened:

        def form() -> dict[str, Any]:
            opened.close()
            return {"data": data, "files": [("file", part_of(file, opened)) for file in files]}

        return await api.create(path, form, key=key)
