"""Cases of the benchmark, and their execution in an installation."""

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.bench.extraction import families, model_request
from tests.bench.extraction.documents import Document
from tests.bench.extraction.families import FAMILIES
from tests.bench.extraction.reader import Account, Ledger
from tests.bench.extraction.scoring import Score, score
from tests.bench.extraction.service import Service

DIRECT, EXTRACT, SUMMARIZE = "direct-json", "chunked-extract", "chunked-summarize"
IMPERFECT = ("sloppy-2", "sloppy-10", "forgetful")
MOST_AT_ONCE = 30  # maximum pages in one call of an imperfect reader
MOST_SUMMARIZED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    document: Document
    strategy: str
    mode: str

    @property
    def name(self) -> str:
        return f"{self.document.family}, {self.document.pages} p., {self.strategy}, {self.mode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    case: Case
    score: Score
    account: Account = field(default_factory=Account)

    @property
    def cost(self) -> float:
        """Return the number of prompt tokens, relative to the tokens of the text."""
        return self.account.prompt_tokens / self.case.document.tokens


def cases(names: Sequence[str], *, seed: int) -> Iterator[Case]:
    for family in FAMILIES:
        if family.name not in names:
            continue
        short, long = (families.document(family, seed=seed, pages=pages) for pages in (1, family.pages))
        yield Case(document=short, strategy=DIRECT, mode="perfect")
        for mode in ("perfect", *IMPERFECT):
            yield Case(document=long, strategy=EXTRACT, mode=mode)
            if mode == "perfect" or family.pages <= MOST_AT_ONCE:
                yield Case(document=long, strategy=DIRECT, mode=mode)
        if family.pages <= MOST_SUMMARIZED:
            yield Case(document=long, strategy=SUMMARIZE, mode="perfect")


def run(installation: Service, selected: Sequence[Case], ledger: Ledger) -> list[Outcome]:
    """Submit the documents of all cases. Return their outcomes."""
    tasks = []
    for case in selected:
        instruction = model_request.instruction(mode=case.mode, run=case.name)
        rule_id = installation.make_rule(case.document, strategy=case.strategy, instruction=instruction)
        tasks.append(installation.submit(case.document, rule_id=rule_id))
    outcomes = []
    for case, task_id in zip(selected, tasks, strict=True):
        task = installation.finished(task_id)
        result = score(case.document, task)
        result.seconds = (at(task["updated_at"]) - at(task["created_at"])).total_seconds()
        outcomes.append(Outcome(case=case, score=result, account=ledger.accounts[case.name]))
    return outcomes


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)
