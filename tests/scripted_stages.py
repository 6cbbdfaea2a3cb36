"""An OCR provider and a post-processor that execute a script in the document. Settings name them by dotted path.

Each line of a text document is a command:

- `wait 4`, `stall 4`: sleep for 4 s, with or without checks for cancellation
- `until NAME`: wait until a file with this name exists (see `allow`)
- `die`: kill the process; `exit`: raise SystemExit
- `raise CLASS`, `raise CLASS 5`: raise an error of etl.core.errors, without or with `retry_after`; `raise Unexpected`:
  raise ValueError
- `remember ID`: record the ID of the provider's task
- `page 1 2`: report progress; `spend 7`: count tokens; `warn CODE`: add a warning

Lines with the prefix `once:` are executed in the first call only, and lines with the prefix `post:` by the
post-processor instead of the provider. Other lines are ignored. A document that contains `nothing` is read as an empty
page.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

from django.conf import settings

from etl.core import errors
from etl.core.formats import DocumentFormat
from etl.core.stage_context import StageContext, Usage
from etl.postprocessors.base import PostProcessor, Processed
from etl.providers.base import Document, OCRProvider, OCRResult, Page, page_marker
from rules.library.content import RuleContent


def folder() -> Path:
    """Return the folder of the records of calls, and of the files that `until` waits for."""
    path: Path = settings.SLUICE.etl_cache_dir / "scripted_stages"
    path.mkdir(parents=True, exist_ok=True)
    return path


def calls(of: str) -> list[str]:
    """Return the process IDs of the recorded calls of the provider (`ocr-17`) or of a rule (`post-<name>`)."""
    file = folder() / of
    return file.read_text().splitlines() if file.exists() else []


def note(of: str) -> int:
    """Record a call, and return the number of earlier calls."""
    with (folder() / of).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len(calls(of)) - 1


def allow(name: str) -> None:
    (folder() / name).touch()


def perform(text: str, context: StageContext, *, role: str, before: int) -> None:
    for line in text.splitlines():
        its_role, _, what = line.partition(":") if line.startswith("post:") else ("ocr", "", line)
        if its_role != role or (what.startswith("once:") and before):
            continue
        words = what.removeprefix("once:").split()
        if words and (act := ACTS.get(words[0])):
            act(context, *words[1:])


def wait(context: StageContext, seconds: str) -> None:
    context.pause(float(seconds))


def stall(context: StageContext, seconds: str) -> None:
    time.sleep(float(seconds))


def until(context: StageContext, name: str) -> None:
    while not (folder() / name).exists():
        context.pause(0.02)


def die(context: StageContext) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_process(context: StageContext) -> None:
    raise SystemExit


def fail(context: StageContext, name: str, retry_after: str = "") -> None:
    if name == "Unexpected":
        raise ValueError("a secret of the document")
    if name == "Fenced":
        raise errors.Fenced
    raise getattr(errors, name)(retry_after=float(retry_after) if retry_after else None)


def spend(context: StageContext, tokens: str) -> None:
    context.count_usage(Usage(prompt_tokens=int(tokens), completion_tokens=1, calls=1))


ACTS: dict[str, Any] = {
    "wait": wait,
    "stall": stall,
    "until": until,
    "die": die,
    "exit": exit_process,
    "raise": fail,
    "spend": spend,
    "remember": lambda context, name: context.record_provider_task(name),
    "page": lambda context, done, total: context.progress(int(done), int(total)),
    "warn": lambda context, code: context.warn(code, "As scripted."),
}


class Provider(OCRProvider):
    name = "scripted"
    formats = frozenset({DocumentFormat.TEXT, DocumentFormat.MARKDOWN})

    def convert(self, document: Document, *, context: StageContext) -> OCRResult:
        text = document.path.read_text()
        before = note(f"ocr-{document.path.stem}")
        if context.provider_task_id:
            note(f"resumed-{document.path.stem}-{context.provider_task_id}")
        perform(text, context, role="ocr", before=before)
        if "nothing" in text:
            text = ""
        markdown = f"{page_marker(1)}\n{text}"
        return OCRResult(
            markdown=markdown,
            pages=(Page(number=1, start=0, end=len(markdown), method="text"),),
            provider=self.name,
            provider_task_id=context.provider_task_id or "scripted-1",
            metadata={"pages": 1, "duration_ms": 1, "version": "1"},
        )


class Processor(PostProcessor):
    """Post-processor for the mode `llm` that returns the number of characters instead of a model's result."""

    mode = "llm"

    def process(self, ocr: OCRResult, rule: RuleContent, *, context: StageContext) -> Processed:
        before = note(f"post-{rule.name}")
        perform(ocr.markdown, context, role="post", before=before)
        context.progress(1, 1)
        return Processed(data={"characters": len(ocr.markdown)}, strategy="scripted", model="none")
