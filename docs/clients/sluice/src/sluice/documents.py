"""Documents: from a file to Markdown and JSON, alone or in batches."""

from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from sluice.api import Api, checked_json, given, json_body
from sluice.blocking import Methods, iterator, method
from sluice.errors import DocumentFailed
from sluice.exports import Day, ignore
from sluice.models import AcceptedBatch, AcceptedTask, Batch, Rule, Task
from sluice.rules import AsyncRules
from sluice.uploading import ROOT, send, upload
from sluice.waiting import AWAY_SECONDS, POLL_SECONDS, Watch

ENDED = frozenset({"completed", "failed", "cancelled"})
# Larger files are uploaded directly to the object storage, so that the service need not buffer them on disk.
DIRECT_BYTES = 8_000_000
BATCH_DIRECT_BYTES = 8 * DIRECT_BYTES

Which = Task | AcceptedTask | int
WhichBatch = Batch | AcceptedBatch | int


def path_of(task: Which) -> str:
    return f"{ROOT}/tasks/{task if isinstance(task, int) else task.id}"


def batch_path_of(batch: WhichBatch) -> str:
    return f"{ROOT}/batches/{batch if isinstance(batch, int) else batch.id}"


class AsyncDocuments:
    """The documents of a user. Methods take a document as an object or its id, and a rule as an object, name, or id."""

    def __init__(self, api: Api, rules: AsyncRules) -> None:
        self.api, self.rules = api, rules

    async def submit(
        self,
        file: str | Path,
        *,
        rule: Rule | int | str | None = None,
        keep_days: int | None = None,
        direct: bool | None = None,
        idempotency_key: str | None = None,
    ) -> AcceptedTask:
        """Submit a document. Requests with the same idempotency key, by default a random one, create one document.

        `keep_days`: delete the document automatically after this many days. `direct`: upload to the object storage
        instead of through the service, by default if the file is larger than 8 MB. Raises OSError.
        """
        path = Path(file)
        fields = given(rule_id=await self.rules.id_of(rule), keep_days=keep_days)
        if path.stat().st_size > DIRECT_BYTES if direct is None else direct:
            body = json_body({"file_key": await upload(self.api, path), **fields})
            accepted = await self.api.create(f"{ROOT}/submit/uploaded", body, key=idempotency_key)
        else:
            accepted = await send(self.api, f"{ROOT}/submit", [path], fields, key=idempotency_key)
        return AcceptedTask.of(accepted)

    async def get(self, task: Which) -> Task:
        return Task.of(await self.api.get(path_of(task)))

    async def list(
        self,
        *,
        status: str | None = None,
        name: str | None = None,
        rule: Rule | int | str | None = None,
        batch: int | None = None,
        date_from: Day | None = None,
        date_to: Day | None = None,
        approved: bool | None = None,
        corrected: bool | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Task]:
        """Yield documents without their results, newest first. `name`: part of the file name. Days are in UTC."""
        flags = {name: str(value).lower() for name, value in given(approved=approved, corrected=corrected).items()}
        filters = {
            "status": status, "q": name, "rule_id": await self.rules.id_of(rule), "batch_id": batch,
            "from": date_from, "to": date_to,
        }  # fmt: skip
        days = {name: str(value) if name in {"from", "to"} else value for name, value in given(**filters).items()}
        async for each in self.api.pages(f"{ROOT}/tasks", {**days, **flags}, limit=limit):
            yield Task.of(each)

    async def wait(
        self, task: Which, *, timeout: float | None = None, progress: Callable[[Task], None] = ignore
    ) -> Task:
        """Wait until a document has ended, also across restarts of the server. Return it with its result.

        `progress` is called after each change. Raises DocumentFailed unless the document was completed, and TimedOut
        after `timeout` seconds, while its processing continues.
        """
        watch = Watch(
            self.api.until(timeout),
            path_of(task),
            ended=ENDED,
            changed=lambda state: progress(Task.of(state)),
            on_event=ignore,
        )
        ended = Task.of(await watch.run())
        if ended.status != "completed":
            raise DocumentFailed(ended)
        return ended

    async def markdown(self, task: Which) -> str:
        """Return the text of a document."""
        headers = {"Accept": "*/*"}
        response = await self.api.request("GET", f"{path_of(task)}/markdown", headers=headers, repeatable=True)
        return response.content.decode()

    async def correct(self, task: Which, changes: Any) -> dict[str, Any]:
        """Change the data of a result by a JSON Merge Patch, in which None removes a member. Return the new result.

        The original is kept. Raises Problem with status 412 if the result is changed by another request meanwhile.
        """
        path = f"{path_of(task)}/result"
        read = await self.api.request("GET", path, repeatable=True)
        headers, body = {"If-Match": read.headers["ETag"]}, json_body({"data": changes})
        response = await self.api.request("PATCH", path, headers=headers, body=body, repeatable=False)
        return dict(checked_json(response))

    async def approve(self, task: Which) -> Task:
        """Approve the result of a document. Return the document without its result."""
        return Task.of(await self.api.post(f"{path_of(task)}/approve", repeatable=True))

    async def remove_approval(self, task: Which) -> None:
        await self.api.request("DELETE", f"{path_of(task)}/approve", repeatable=True)

    async def cancel(self, task: Which, *, force: bool = False) -> AcceptedTask:
        """Cancel a document that has not been started; with `force`, also one that is being processed."""
        return AcceptedTask.of(await self.api.post(f"{path_of(task)}/cancel", {"force": force}))

    async def retry(
        self, task: Which, *, from_stage: Literal["ocr", "postprocess"], rule: Rule | int | str | None = None
    ) -> AcceptedTask:
        """Retry a document from the start, or apply its rule or another rule to the parsed text again."""
        body = {"from_stage": from_stage, **given(rule_id=await self.rules.id_of(rule))}
        return AcceptedTask.of(await self.api.post(f"{path_of(task)}/retry", body))

    async def delete(self, task: Which, *, force: bool = False) -> None:
        """Delete a document, its text, and its result; with `force`, also one that is being processed."""
        await self.api.delete(path_of(task), {"force": "true"} if force else None)


class Documents(Methods):
    """The documents of a user. Methods take a document as an object or its id, and a rule as an object, name, or id."""

    submit = method(AsyncDocuments.submit)
    get = method(AsyncDocuments.get)
    list = iterator(AsyncDocuments.list)
    wait = method(AsyncDocuments.wait)
    markdown = method(AsyncDocuments.markdown)
    correct = method(AsyncDocuments.correct)
    approve = method(AsyncDocuments.approve)
    remove_approval = method(AsyncDocuments.remove_approval)
    cancel = method(AsyncDocuments.cancel)
    retry = method(AsyncDocuments.retry)
    delete = method(AsyncDocuments.delete)


# ---- Batches --------------------------------------------------------------------------------------------------------


def is_archive(files: "list[Path]") -> bool:
    return len(files) == 1 and files[0].suffix.lower() == ".zip"


class AsyncBatches:
    """Documents that are submitted together. Methods take a batch as an object or its id."""

    def __init__(self, api: Api, rules: AsyncRules) -> None:
        self.api, self.rules = api, rules

    async def submit(
        self,
        files: Iterable[str | Path],
        *,
        name: str | None = None,
        rule: Rule | int | str | None = None,
        direct: bool | None = None,
        idempotency_key: str | None = None,
        progress: Callable[[int, int], None] = ignore,
    ) -> AcceptedBatch:
        """Submit documents, or one ZIP file with documents. `refused` lists the files that were not accepted.

        `direct`: upload to the object storage instead of through the service, by default if the files are larger than
        64 MB together. `progress` is called with the number of uploaded files and the total. Raises OSError.
        """
        paths = [Path(file) for file in files]
        fields = given(name=name or None, rule_id=await self.rules.id_of(rule))
        if direct is None:
            direct = not is_archive(paths) and sum(path.stat().st_size for path in paths) > BATCH_DIRECT_BYTES
        if not direct:
            return AcceptedBatch.of(await send(self.api, f"{ROOT}/batches", paths, fields, key=idempotency_key))
        keys = []
        for done, path in enumerate(paths):
            progress(done, len(paths))
            keys.append(await upload(self.api, path))
        body = json_body({**fields, "file_keys": keys})
        return AcceptedBatch.of(await self.api.create(f"{ROOT}/batches/uploaded", body, key=idempotency_key))

    async def submit_inbox(
        self,
        prefix: str = "",
        *,
        name: str | None = None,
        rule: Rule | int | str | None = None,
        idempotency_key: str | None = None,
    ) -> AcceptedBatch:
        """Submit the files of the user's inbox whose paths begin with `prefix`. The files are kept."""
        body = json_body({"prefix": prefix, **given(name=name or None, rule_id=await self.rules.id_of(rule))})
        return AcceptedBatch.of(await self.api.create(f"{ROOT}/batches/uploaded", body, key=idempotency_key))

    async def get(self, batch: WhichBatch) -> Batch:
        return Batch.of(await self.api.get(batch_path_of(batch)))

    async def list(self, *, limit: int | None = None) -> AsyncIterator[Batch]:
        """Yield batches, newest first."""
        async for each in self.api.pages(f"{ROOT}/batches", limit=limit):
            yield Batch.of(each)

    async def wait(
        self, batch: WhichBatch, *, timeout: float | None = None, progress: Callable[[Batch], None] = ignore
    ) -> Batch:
        """Wait until all documents have ended. Some may have failed. Raises TimedOut after `timeout` seconds."""
        api = self.api.until(timeout)
        while True:
            found = Batch.of(await api.get(batch_path_of(batch), away=AWAY_SECONDS))
            progress(found)
            if found.status != "running":
                return found
            await api.pause(POLL_SECONDS)

    async def download(
        self,
        batch: WhichBatch,
        target: str | Path,
        *,
        format: Literal["csv", "jsonl", "parquet"] = "csv",  # noqa: A002 - the name in the API
        rows: str | None = None,
        formula_policy: Literal["none", "escape"] | None = None,
    ) -> Path:
        """Write the results of all documents to one file, which is created when it is complete.

        `rows`: one row for each item of a list, such as `/items`. Raises OSError.
        """
        path = Path(target)
        part = path.with_name(f"{path.name}.part")
        query = given(format=format, rows=rows, formula_policy=formula_policy)
        with part.open("wb") as file:
            async for block in self.api.body(f"{batch_path_of(batch)}/results", query):
                await self.api.network.call(file.write, block)
        return part.replace(path)

    async def cancel(self, batch: WhichBatch, *, force: bool = False) -> Batch:
        """Cancel the documents that have not been started; with `force`, also those that are being processed."""
        return Batch.of(await self.api.post(f"{batch_path_of(batch)}/cancel", {"force": force}))

    async def retry(self, batch: WhichBatch) -> Batch:
        """Retry the failed documents, each from the stage at which it failed."""
        return Batch.of(await self.api.post(f"{batch_path_of(batch)}/retry"))


class Batches(Methods):
    """Documents that are submitted together. Methods take a batch as an object or its id."""

    submit = method(AsyncBatches.submit)
    submit_inbox = method(AsyncBatches.submit_inbox)
    get = method(AsyncBatches.get)
    list = iterator(AsyncBatches.list)
    wait = method(AsyncBatches.wait)
    download = method(AsyncBatches.download)
    cancel = method(AsyncBatches.cancel)
    retry = method(AsyncBatches.retry)
