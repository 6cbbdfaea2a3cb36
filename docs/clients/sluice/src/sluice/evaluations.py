"""Samples of a rule, and evaluations of the rule's versions on these samples."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from sluice import exact_json
from sluice.api import Api, given, json_body
from sluice.blocking import Methods, iterator, method
from sluice.exports import ignore
from sluice.models import Evaluation, Sample, Task
from sluice.rules import AsyncRules, Which
from sluice.uploading import send
from sluice.waiting import AWAY_SECONDS, POLL_SECONDS


class AsyncSamples:
    """The samples of a rule: documents with the data that it should extract."""

    def __init__(self, api: Api, rules: AsyncRules) -> None:
        self.api, self.rules = api, rules

    async def path_of(self, rule: Which) -> str:
        return f"{await self.rules.path_of(rule)}/samples"

    async def list(self, rule: Which, *, limit: int | None = None) -> AsyncIterator[Sample]:
        async for each in self.api.pages(await self.path_of(rule), limit=limit):
            yield Sample.of(each)

    async def add(self, rule: Which, document: Task | int | str | Path, expected: Any) -> Sample:
        """Add a submitted document or a file with its expected data. If it is a sample already, replace the data."""
        path = await self.path_of(rule)
        if isinstance(document, str | Path):
            fields = {"expected": exact_json.dumps(expected)}
            return Sample.of(await send(self.api, path, [Path(document)], fields, key=None))
        task_id = document if isinstance(document, int) else document.id
        return Sample.of(await self.api.create(f"{path}/task", json_body({"task_id": task_id, "expected": expected})))

    async def delete(self, rule: Which, sample: Sample | int) -> None:
        """Delete a sample. Its document is kept."""
        number = sample if isinstance(sample, int) else sample.id
        await self.api.request("DELETE", f"{await self.path_of(rule)}/{number}", repeatable=True)


class Samples(Methods):
    """The samples of a rule: documents with the data that it should extract."""

    list = iterator(AsyncSamples.list)
    add = method(AsyncSamples.add)
    delete = method(AsyncSamples.delete)


class AsyncEvaluations:
    """The evaluations of a rule. Methods take an evaluation as an object, or its number within the rule."""

    def __init__(self, api: Api, rules: AsyncRules) -> None:
        self.api, self.rules = api, rules

    async def path_of(self, rule: Which, evaluation: Evaluation | int | None = None) -> str:
        path = f"{await self.rules.path_of(rule)}/evaluations"
        return path if evaluation is None else f"{path}/{getattr(evaluation, 'number', evaluation)}"

    async def create(self, rule: Which, *, version: int | None = None) -> Evaluation:
        """Run a version of a rule, by default the current one, on its samples."""
        return Evaluation.of(await self.api.post(await self.path_of(rule), given(version=version)))

    async def get(self, rule: Which, evaluation: Evaluation | int) -> Evaluation:
        return Evaluation.of(await self.api.get(await self.path_of(rule, evaluation)))

    async def list(self, rule: Which, *, limit: int | None = None) -> AsyncIterator[Evaluation]:
        """Yield evaluations, newest first."""
        async for each in self.api.pages(await self.path_of(rule), limit=limit):
            yield Evaluation.of(each)

    async def wait(
        self,
        rule: Which,
        evaluation: Evaluation | int,
        *,
        timeout: float | None = None,
        progress: Callable[[Evaluation], None] = ignore,
    ) -> Evaluation:
        """Wait until an evaluation has ended, with or without success. Raises TimedOut after `timeout` seconds."""
        api, path = self.api.until(timeout), await self.path_of(rule, evaluation)
        while True:
            found = Evaluation.of(await api.get(path, away=AWAY_SECONDS))
            progress(found)
            if found.status != "running":
                return found
            await api.pause(POLL_SECONDS)

    async def cancel(self, rule: Which, evaluation: Evaluation | int) -> Evaluation:
        return Evaluation.of(await self.api.post(f"{await self.path_of(rule, evaluation)}/cancel", {}))


class Evaluations(Methods):
    """The evaluations of a rule. Methods take an evaluation as an object, or its number within the rule."""

    create = method(AsyncEvaluations.create)
    get = method(AsyncEvaluations.get)
    list = iterator(AsyncEvaluations.list)
    wait = method(AsyncEvaluations.wait)
    cancel = method(AsyncEvaluations.cancel)
