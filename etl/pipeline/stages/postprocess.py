"""Post-processing: stored Markdown and a rule into stored JSON. What was done is found, and not done again."""

from dataclasses import dataclass, field
from typing import Any

from config.platform import storage
from etl.core.errors import ArtifactMissing
from etl.core.stage_context import StageContext
from etl.pipeline import artifacts, engines
from etl.pipeline.artifacts import StoredOcr
from etl.postprocessors.base import Processed
from etl.runstate import RunState
from rules.library import catalog
from rules.library.content import RuleContent

NO_MODEL = "skip"


def run(state: RunState, context: StageContext) -> dict[str, Any]:
    """Return the stored output: that of an earlier attempt, or a new one.

    `{"markdown_s3_key", "provider_task_id", "metadata"}`, and `"data"` and `"citations"` of processors that give data.
    Raises EtlError, StorageError, Unavailable, Django's errors, and what `context.check()` raises.
    """
    return find(state) or process(state, context)


def find(state: RunState) -> dict[str, Any] | None:
    """Return the output that is stored. Raises StorageError."""
    return artifacts.find(artifacts.output_key(state))


def process(state: RunState, context: StageContext) -> dict[str, Any]:
    warn_of_loss(state, context)
    stored = artifacts.find_ocr(state)
    if stored is None:
        raise ArtifactMissing
    try:
        ocr = artifacts.load_ocr(stored)
    except storage.Missing:
        raise ArtifactMissing from None
    rule = rule_of(state)
    done = engines.processor(rule.mode).process(ocr, rule, context=context)
    output = output_of(done, origin_of(state, stored, context), rule=rule, context=context)
    return artifacts.commit(artifacts.output_key(state), output, check=context.check)


def warn_of_loss(state: RunState, context: StageContext) -> None:
    """Say so where the run-state was made anew during this run, and its counts with it. Raises Django's errors."""
    if state.fence > state.run and rule_of(state).mode != NO_MODEL:
        context.warn(
            "usage_incomplete",
            "The task's state was lost once. Calls and attempts before that may not be counted.",
        )


def rule_of(state: RunState) -> RuleContent:
    return catalog.content(rule_id=state.rule_id, version=state.rule_version)


# ---- The output -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOrigin:
    """What a result came from, and what that took. None where there are no files, and no OCR: when a rule is tried.

    `attempts`: `{"ocr": 1, "postprocess": 2}`; `warnings`: those of OCR.
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
        warnings=stored.warnings,
    )


def output_of(done: Processed, origin: ResultOrigin, *, rule: RuleContent, context: StageContext) -> dict[str, Any]:
    """Return what `run` tells of. Only the processor knows whether there is data: null may be what was found."""
    output = {
        "markdown_s3_key": origin.markdown_key,
        "provider_task_id": origin.provider_task_id,
        "metadata": origin.metadata | {"provenance": provenance_of(done, origin, rule=rule, context=context)},
    }
    gives_data = engines.processor(rule.mode).gives_data
    return output | ({"data": done.data, "citations": done.citations} if gives_data else {})


def provenance_of(done: Processed, origin: ResultOrigin, *, rule: RuleContent, context: StageContext) -> dict[str, Any]:
    return {
        "rule_id": rule.rule_id,
        "rule_version": rule.version,
        "mode": rule.mode,
        "provider": origin.provider,
        "strategy": done.strategy,
        "model": done.model,
        "attempts": origin.attempts,
        "usage": origin.usage,
        "warnings": origin.warnings + [warning.as_dict() for warning in context.warnings],
    }


def usage_of(state: RunState, context: StageContext) -> dict[str, int]:
    """Return what all attempts used. The run-state has what earlier ones paid; where it was lost, the journal still has
    their answers, and this attempt has counted them."""
    paid = context.paid.as_dict()
    return {name: max(state.usage.get(name, 0) + paid[name], count) for name, count in context.usage.as_dict().items()}
