"""The post-processing stage: from Markdown and a rule to stored JSON. It reuses an earlier attempt's output."""

from dataclasses import dataclass, field
from typing import Any

import structlog

from config.platform import storage
from etl.core import completeness
from etl.core.errors import ArtifactMissing, EmptyDocument, EtlError, IncompleteDocument
from etl.core.stage_context import USAGE_INCOMPLETE, StageContext
from etl.pipeline import artifacts, engines, page_images
from etl.pipeline.artifacts import ArtifactOwner, StoredOcr
from etl.postprocessors.base import Processed
from etl.providers.base import without_markers
from etl.runstate import RunState
from rules.library import catalog
from rules.library.content import RuleContent

log = structlog.get_logger(__name__)

NO_MODEL = "skip"
MAX_ANSWER = 2_000_000  # characters


def run(state: RunState, context: StageContext) -> dict[str, Any]:
    """Return the stored output of an earlier attempt, or a new one.

    It has `markdown_s3_key`, `provider_task_id`, `metadata` and, if the processor returns data, `data` and `citations`.
    Raises EtlError, StorageError, Unavailable, Django's errors, and the errors of `context.check()`.
    """
    return find(state) or process(state, context)


def find(state: RunState) -> dict[str, Any] | None:
    """Return the stored output, if any. Raises StorageError."""
    return artifacts.find(artifacts.output_key(state))


def process(state: RunState, context: StageContext) -> dict[str, Any]:
    warn_of_loss(state, context)
    rule = rule_of(state)
    try:
        stored, done = extract(state, rule, context)
    except EtlError as error:
        store_answer(state, error, context)
        raise
    output = output_of(done, origin_of(state, stored, context), rule=rule, context=context)
    return artifacts.commit(artifacts.output_key(state), output, check=context.check)


def extract(owner: ArtifactOwner, rule: RuleContent, context: StageContext) -> tuple[StoredOcr, Processed]:
    """Apply a rule to the stored Markdown of a task.

    Raises EtlError, for example ArtifactMissing if there is no OCR result, StorageError, and the errors of
    `context.check()`.
    """
    stored = artifacts.find_ocr(owner)
    if stored is None:
        raise ArtifactMissing
    context.page_images = page_images.for_models(owner, count=stored.metadata.get("pages"))
    sees_pages = context.page_images is not None and engines.reads_images(rule)
    if rule.require_complete and not sees_pages:
        refuse_incomplete(stored)
    try:
        ocr = artifacts.load_ocr(stored)
    except storage.Missing:
        raise ArtifactMissing from None
    if not sees_pages and not without_markers(ocr.markdown).strip():
        raise EmptyDocument  # it was parsed for another rule, whose model reads page images
    return stored, engines.processor(rule.mode).process(ocr, rule, context=context)


def store_answer(state: RunState, error: EtlError, context: StageContext) -> None:
    """Store the model's unusable response for the owner. A failure to store it is only logged."""
    if not error.answer:
        return
    text = artifacts.clean(error.answer[:MAX_ANSWER]).encode()
    try:
        artifacts.put_once(artifacts.answer_key(state), text, content_type=artifacts.TEXT, check=context.check)
    except storage.StorageError as reason:
        log.warning("answer_not_stored", reason=str(reason))


def refuse_incomplete(stored: StoredOcr) -> None:
    """Raise IncompleteDocument if pages are missing or uncertain, before a model is paid for the others."""
    if pages := completeness.incomplete_pages(stored.warnings):
        named = completeness.describe(pages)
        raise IncompleteDocument(f"The rule requires complete documents. Not read reliably: {named}.")


def warn_of_loss(state: RunState, context: StageContext) -> None:
    """Warn if the run-state was recreated during this run, which resets its counts. Raises Django's errors.

    A retry starts a run with its generation. Later, only a recreated run-state has a greater one.
    """
    if state.generation > state.run and rule_of(state).mode != NO_MODEL:
        context.warn(
            USAGE_INCOMPLETE,
            "The task's state was lost once. Earlier calls and attempts may not be counted.",
        )


def rule_of(state: RunState) -> RuleContent:
    return catalog.content(rule_id=state.rule_id, version=state.rule_version)


# ---- The output -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOrigin:
    """The origin and cost of a result. Rule trials have no stored files and no provider, so these fields are None.

    `attempts`: `{"ocr": 1, "postprocess": 2}`; `warnings`: those of OCR and of earlier attempts.
    """

    metadata: dict[str, Any]
    attempts: dict[str, int]
    usage: dict[str, int]
    markdown_key: str | None = None
    provider: str | None = None
    provider_task_id: str | None = None
    warnings: list[dict[str, Any]] = field(default_factory=list)


def origin_of(state: RunState, stored: StoredOcr, context: StageContext) -> ResultOrigin:
    return ResultOrigin(
        metadata=stored.metadata,
        attempts=state.attempts,
        usage=usage_of(state, context),
        markdown_key=stored.markdown_key,
        provider=stored.facts["provider"],
        provider_task_id=stored.facts["provider_task_id"],
        warnings=stored.warnings + [each for each in state.metadata["warnings"] if each not in stored.warnings],
    )


def output_of(done: Processed, origin: ResultOrigin, *, rule: RuleContent, context: StageContext) -> dict[str, Any]:
    """Return the output that `run` describes. It has `data` if the processor returns data, even if that is null."""
    output = {
        "markdown_s3_key": origin.markdown_key,
        "provider_task_id": origin.provider_task_id,
        "metadata": origin.metadata | {"provenance": provenance_of(done, origin, rule=rule, context=context)},
    }
    gives_data = engines.processor(rule.mode).gives_data
    return output | ({"data": done.data, "citations": done.citations} if gives_data else {})


def provenance_of(done: Processed, origin: ResultOrigin, *, rule: RuleContent, context: StageContext) -> dict[str, Any]:
    own = [warning.as_dict() for warning in context.warnings]
    return {
        "rule_id": rule.rule_id,
        "rule_version": rule.version,
        "mode": rule.mode,
        "provider": origin.provider,
        "strategy": done.strategy,
        "model": done.model,
        **({"source": done.source} if done.source else {}),
        "attempts": origin.attempts,
        "usage": origin.usage,
        "warnings": origin.warnings + [each for each in own if each not in origin.warnings],
    }


def usage_of(state: RunState, context: StageContext) -> dict[str, int]:
    """Return the usage of all attempts.

    The run-state has the usage of earlier attempts. If it was lost, this attempt also counts the responses that earlier
    attempts of the same run left in the cache.
    """
    paid = context.paid.as_dict()
    return {name: max(state.usage.get(name, 0) + paid[name], count) for name, count in context.usage.as_dict().items()}
