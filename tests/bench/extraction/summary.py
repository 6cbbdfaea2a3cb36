"""Report of the benchmark: bounds, and a table of all documents."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from tests.bench.extraction.reader import Account, Ledger
from tests.bench.extraction.runs import SUMMARIZE, Outcome
from tests.bench.extraction.scoring import Score
from tests.bench.report import Report

MOST_PAID = 1.5
LONG = 24_000  # characters; in longer documents, the instructions of calls are a small part of the cost
SHOWN = 3  # maximum examples of each kind of failure, per document
HEADER = [
    "document",
    "strategy",
    "reader",
    "status",
    "rows",
    "extra",
    "values",
    "astray",
    "wrong",
    "lost",
    "named",
    "paid",
    "s",
]


def report(outcomes: Sequence[Outcome], ledger: Ledger) -> Report:
    result = Report()
    result.table("Documents", HEADER, [line(outcome) for outcome in outcomes])
    perfect = [outcome for outcome in outcomes if outcome.case.mode == "perfect"]
    others = [outcome for outcome in outcomes if outcome.case.mode != "perfect"]
    add_bounds(result, perfect, others)
    add_costs(result, outcomes)
    result.bound("E", "requests that the reader could not parse", len(ledger.unknown), 0, unit="")
    missed = [note(outcome) for outcome in outcomes if examples(outcome)]
    if missed:
        result.notes.append("\n".join(["Examples of failures", "", *missed]))
    return result


def add_bounds(result: Report, perfect: list[Outcome], others: list[Outcome]) -> None:
    def add_bound(number: str, what: str, value: float, total: float) -> None:
        result.bound(number, what, value, 0, unit=f"of {total:,.0f}")

    scores = [outcome.score for outcome in perfect]
    add_bound(
        "E1", "perfect reader: documents that failed", sum(each.status != "completed" for each in scores), len(scores)
    )
    rows, scalars = sum(each.rows for each in scores), sum(each.scalars for each in scores)
    add_bound("E1", "perfect reader: rows that are missing or wrong", rows - sum(each.right for each in scores), rows)
    add_bound("E1", "perfect reader: rows that the document does not have", sum(each.extra for each in scores), rows)
    right = sum(each.scalars_right for each in scores)
    add_bound("E1", "perfect reader: single values that are missing or wrong", scalars - right, scalars)
    cited = [outcome.score for outcome in perfect if outcome.case.strategy != SUMMARIZE]
    values = sum(values_of(outcome) for outcome in perfect if outcome.case.strategy != SUMMARIZE)
    add_bound(
        "E2", "perfect reader: values that are not cited at their row", sum(len(each.astray) for each in cited), values
    )
    for mode in dict.fromkeys(outcome.case.mode for outcome in others):
        scores = [outcome.score for outcome in others if outcome.case.mode == mode]
        rows = sum(each.rows for each in scores)
        add_bound(
            "E3", f"{mode}: documents that failed", sum(each.status != "completed" for each in scores), len(scores)
        )
        differing = sum(each.differing for each in scores)
        add_bound(
            "E3",
            f"{mode}: wrong values cited as exact or normalized",
            sum(len(each.wrong) for each in scores),
            differing,
        )
        add_bound(
            "E3", f"{mode}: losses without a warning that names them", sum(len(each.lost) for each in scores), rows
        )
        result.bound("E3", f"{mode}: losses with a warning", sum(each.named for each in scores), unit=f"of {rows:,}")
        result.bound("E3", f"{mode}: rows that the document does not have", sum(each.extra for each in scores), unit="")


def add_costs(result: Report, outcomes: Sequence[Outcome]) -> None:
    for mode in dict.fromkeys(outcome.case.mode for outcome in outcomes):
        long = [each for each in outcomes if each.case.mode == mode and len(each.case.document.text) > LONG]
        long = [each for each in long if each.case.strategy != SUMMARIZE]
        if long:
            result.bound(
                "E4",
                f"{mode}: prompt tokens, relative to the text, at most",
                max(each.cost for each in long),
                MOST_PAID,
            )
            tokens = sum(each.account.prompt_tokens for each in long)
            result.bound(
                "E4",
                f"{mode}: the same of all long documents",
                tokens / sum(each.case.document.tokens for each in long),
            )


def values_of(outcome: Outcome) -> int:
    rows = outcome.case.document.rows
    return outcome.score.scalars + sum(value is not None for row in rows for value in row.values.values())


def line(outcome: Outcome) -> list[object]:
    case, score = outcome.case, outcome.score
    return [
        f"{case.document.family}, {case.document.pages} p.",
        case.strategy,
        case.mode,
        score.error or score.status,
        f"{score.right} of {score.rows}",
        score.extra,
        f"{score.scalars_right} of {score.scalars}",
        len(score.astray),
        f"{len(score.wrong)} of {score.differing}",
        len(score.lost),
        score.named,
        f"{outcome.cost:.2f}",
        f"{score.seconds:.1f}",
    ]


def examples(outcome: Outcome) -> list[str]:
    score = outcome.score
    astray = score.astray if outcome.case.mode == "perfect" else []
    return [*score.wrong[:SHOWN], *(f"lost: {each}" for each in score.lost[:SHOWN]), *astray[:SHOWN]]


def note(outcome: Outcome) -> str:
    return "\n".join([f"- {outcome.case.name}", *(f"  - {example}" for example in examples(outcome))])


def details(outcome: Outcome) -> dict[str, Any]:
    """Return all data about an outcome, for the JSON file."""
    case = outcome.case
    return {
        "family": case.document.family, "pages": case.document.pages, "strategy": case.strategy, "mode": case.mode,
        "cost": outcome.cost, **fields_of(outcome.score), **fields_of(outcome.account),
    }  # fmt: skip


def fields_of(result: Score | Account) -> dict[str, Any]:
    return {each.name: getattr(result, each.name) for each in fields(result)}
