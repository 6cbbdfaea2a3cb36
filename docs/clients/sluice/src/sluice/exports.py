"""Exports: chunks of a dataset as files."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import IO, Any, Literal, TypedDict, Unpack
from urllib.parse import quote
from uuid import UUID

from sluice.api import AGENT, Api, Body, checked_json, given, json_body
from sluice.blocking import Methods, iterator, method
from sluice.downloading import Download, ExpectedFile, already_downloaded, target_of
from sluice.errors import ExportFailed
from sluice.events import Event
from sluice.models import AcceptedExport, Chunk, Dataset, Export, Limits, Link, Preview
from sluice.waiting import Watch, follow

ENDED = frozenset({"success", "failed", "cancelled"})
Which = Export | AcceptedExport | UUID | str
Day = date | str


class Csv(TypedDict, total=False):
    """The dialect of CSV files."""

    bom: bool
    delimiter: Literal[",", ";", "|", "\t"]
    formulaPolicy: Literal["none", "escape"]


class Request(TypedDict, total=False):
    """The request of an export: `items`, or `keys` with both dates, or filters for the dataset `documents`."""

    items: Iterable[tuple[str, Day]]
    keys: Iterable[str]
    date_from: Day
    date_to: Day
    rule_id: int
    batch_id: int
    document_status: Literal["pending", "completed", "failed", "cancelled"]
    name: str
    format: Literal["csv", "jsonl", "json", "parquet"]
    compression: Literal["none", "gzip", "zstd"]
    columns: Iterable[str]
    delivery: Literal["auto", "single", "zip", "manifest"]
    csv: Csv
    reuse: Literal["if-present", "never"]
    allow_degraded: bool
    delivery_ttl_seconds: int


FILTERS = {
    "keys": "keys", "date_from": "dateFrom", "date_to": "dateTo", "rule_id": "ruleId", "batch_id": "batchId",
    "document_status": "status",
}  # fmt: skip
OPTIONS = {"allow_degraded": "allowDegraded", "delivery_ttl_seconds": "deliveryTtlSeconds"}


def body_of(dataset: str, request: Any) -> Body:
    """Return the body of POST /exports. Options that are None are omitted."""
    document: dict[str, Any] = {"dataset": dataset}
    filters: dict[str, Any] = {}
    for name, value in given(**request).items():
        if name == "items":
            document["items"] = [{"key": key, "effectiveDate": str(day)} for key, day in value]
        elif name in FILTERS:
            filters[FILTERS[name]] = list(value) if name == "keys" else value if name.endswith("_id") else str(value)
        else:
            document[OPTIONS.get(name, name)] = list(value) if name == "columns" else value
    if filters or "items" not in document:
        document["filters"] = filters
    return json_body(document)


def path_of(export: Which) -> str:
    return f"/exports/{id_of(export)}"


def id_of(export: Which) -> str:
    return export.id if isinstance(export, Export | AcceptedExport) else str(export)


def ignore(*_: object) -> None:
    """Do nothing: the default for callbacks."""


class AsyncExports:
    """The exports of a user. Methods take an export as an object or its id."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def create(
        self, dataset: str, *, idempotency_key: str | None = None, **request: Unpack[Request]
    ) -> AcceptedExport:
        """Create an export. Requests with the same idempotency key, by default a random one, create one export."""
        return await self.create_from(body_of(dataset, request), idempotency_key=idempotency_key)

    async def create_from(self, body: Body, *, idempotency_key: str | None = None) -> AcceptedExport:
        """Create an export from a body, such as a file. `body` is called for each attempt."""
        return AcceptedExport.of(await self.api.create("/exports", body, key=idempotency_key))

    async def preview(self, dataset: str, **request: Unpack[Request]) -> Preview:
        """Return what an export would contain and cost."""
        return await self.preview_from(body_of(dataset, request))

    async def preview_from(self, body: Body) -> Preview:
        response = await self.api.request("POST", "/exports/preview", body=body, repeatable=True)
        return Preview.of(checked_json(response))

    async def get(self, export: Which) -> Export:
        return Export.of(await self.api.get(path_of(export)))

    async def list(
        self,
        *,
        status: str | None = None,
        dataset: str | None = None,
        search: str | None = None,
        date_from: Day | None = None,
        date_to: Day | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Export]:
        """Yield exports, newest first. `search`: part of the name, or the first digits of the id. Days are in UTC."""
        params = {"status": status, "dataset": dataset, "q": search, "from": date_from, "to": date_to}
        async for each in self.api.pages("/exports", params, limit=limit):
            yield Export.of(each)

    async def chunks(
        self, export: Which, *, status: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Chunk]:
        """Yield the chunks of an export, in the order of the request."""
        async for each in self.api.pages(f"{path_of(export)}/chunks", {"status": status}, limit=limit):
            yield Chunk.of(each)

    async def events(self, export: Which, *, after: str = "") -> AsyncIterator[Event]:
        """Yield the events of an export until it ends. `after`: the number of the last received event."""
        await self.api.get(path_of(export))
        async for event in follow(self.api, path_of(export), ended=ENDED, after=after):
            yield event

    async def wait(
        self,
        export: Which,
        *,
        timeout: float | None = None,
        progress: Callable[[Export], None] = ignore,
        on_chunk: Callable[[Chunk], None] = ignore,
    ) -> Export:
        """Wait until an export has ended, also across restarts of the server. Return it with its receipt.

        `progress` is called after each change, `on_chunk` with each chunk whose status changes. Raises ExportFailed
        unless the export succeeded, and TimedOut after `timeout` seconds, while the export continues.
        """

        def on_event(event: Event) -> None:
            if event.kind == "chunk":
                on_chunk(Chunk.of(event.data))

        watch = Watch(
            self.api.until(timeout),
            path_of(export),
            ended=ENDED,
            changed=lambda state: progress(Export.of(state)),
            on_event=on_event,
        )
        ended = Export.of(await watch.run())
        if ended.status != "success":
            raise ExportFailed(ended)
        return ended

    async def download(
        self,
        export: Which,
        target: str | Path = ".",
        *,
        overwrite: bool = False,
        progress: Callable[[int, int], None] = ignore,
    ) -> Path:
        """Download the file of an export, and return its path. An interrupted download is resumed.

        `target`: a file or a folder. A path that ends with a slash is a folder, which is created. A file with the same
        content is not downloaded again. `progress` is called with the number of received bytes and the total.

        Raises NoFile, TargetExists, ChecksumMismatch, and OSError.
        """
        wanted = ExpectedFile.of(export if isinstance(export, Export) else await self.get(export))
        path = target_of(target, wanted)
        if not await self.api.network.call(lambda: already_downloaded(path, wanted, overwrite=overwrite)):
            await Download(api=self.api, wanted=wanted, on_progress=progress).into(path)
        return path

    async def download_to(
        self, export: Which, file: IO[bytes], *, progress: Callable[[int, int], None] = ignore
    ) -> None:
        """Write the file of an export to a stream. Raises ChecksumMismatch after the content was written."""
        wanted = ExpectedFile.of(export if isinstance(export, Export) else await self.get(export))
        download = Download(api=self.api, wanted=wanted, on_progress=progress, may_restart=False)
        await download.write_to(file)
        download.check()

    async def link(self, export: Which, *, user_agent: str = AGENT) -> Link:
        """Create a link that works once, for a program with this User-Agent. The previous link is revoked."""
        path, headers = f"{path_of(export)}/link", {"User-Agent": user_agent}
        return Link.of((await self.api.request("POST", path, repeatable=True, headers=headers)).json())

    async def cancel(self, export: Which) -> Export:
        return Export.of(await self.api.post(f"{path_of(export)}/cancel"))

    async def retry(self, export: Which) -> Export:
        """Retry the failed chunks of a failed export."""
        return Export.of(await self.api.post(f"{path_of(export)}/retry"))

    async def replay(self, export: Which) -> AcceptedExport:
        """Create a new export with the same request. Existing files are reused."""
        return AcceptedExport.of(await self.api.post(f"{path_of(export)}/replay"))

    async def datasets(self) -> Sequence[Dataset]:
        return [Dataset.of(each) for each in (await self.api.get("/exports/datasets"))["results"]]

    async def dataset(self, name: str) -> Dataset:
        """Return a dataset with its columns."""
        return Dataset.of(await self.api.get(f"/exports/datasets/{quote(name, safe='')}"))

    async def limits(self) -> Limits:
        """Return the daily quota, its usage, and the other limits."""
        return Limits.of(await self.api.get("/exports/limits"))


class Exports(Methods):
    """The exports of a user. Methods take an export as an object or its id."""

    create = method(AsyncExports.create)
    create_from = method(AsyncExports.create_from)
    preview = method(AsyncExports.preview)
    preview_from = method(AsyncExports.preview_from)
    get = method(AsyncExports.get)
    list = iterator(AsyncExports.list)
    chunks = iterator(AsyncExports.chunks)
    events = iterator(AsyncExports.events)
    wait = method(AsyncExports.wait)
    download = method(AsyncExports.download)
    download_to = method(AsyncExports.download_to)
    link = method(AsyncExports.link)
    cancel = method(AsyncExports.cancel)
    retry = method(AsyncExports.retry)
    replay = method(AsyncExports.replay)
    datasets = method(AsyncExports.datasets)
    dataset = method(AsyncExports.dataset)
    limits = method(AsyncExports.limits)
