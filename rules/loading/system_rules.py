"""System rules: the files that come with Sluice, and those in ETL_RULES_DIR, become rows.

A file is known by its slug, the name without the extension. A new file is a new rule, a changed one a new version, and
one that is gone hides its rule until it comes back. A file in ETL_RULES_DIR stands in for ours of the same name.

Everything is loaded by `migrate` and by `manage.py load_rules`. Changes and additions in ETL_RULES_DIR are also taken
up by a tick of beat once a minute, so that nobody has to restart anything. The tick hides no rule, and leaves ours
alone: it may run in a worker that is older than the database, or that was not given the folder.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from rules.library import editing
from rules.loading import parsing
from rules.loading.parsing import Flaw, Folder
from rules.models import Rule, RuleVersion

log = structlog.get_logger(__name__)

SHIPPED = Path(__file__).parent / "shipped"
told: set[Flaw] = set()
LOCK = 7_017_460_288_391  # any number, the same in all processes


@dataclass(slots=True)
class Outcome:
    """Slugs by what became of their rules, and what is wrong with files."""

    made: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    flaws: list[Flaw] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        names = ("made", "changed", "restored", "hidden")
        return {name: len(getattr(self, name)) for name in names if getattr(self, name)}


def folder() -> Path:
    """Return ETL_RULES_DIR; a relative one begins at the project's."""
    return Path(settings.BASE_DIR) / settings.SLUICE.etl_rules_dir


def load_all() -> Outcome:
    """Make the system rules what the files say. A bad file leaves its rule as it is, and the others alone.

    Where ETL_RULES_DIR is not there, its rules stay: a host that was not given the folder must not hide them from the
    others. An empty folder hides them.
    """
    shipped, theirs = parsing.read(SHIPPED) or Folder(), parsing.read(folder())
    present = shipped.slugs | theirs.slugs if theirs else None
    return store([shipped, theirs] if theirs else [shipped], present=present)


def load_changes() -> Outcome:
    """Take up what is new in ETL_RULES_DIR. Hides nothing."""
    theirs = parsing.read(folder())
    return store([theirs], present=None) if theirs and theirs.slugs else Outcome()


def store(folders: list[Folder], *, present: set[str] | None) -> Outcome:
    """`present`: the slugs that there are files for; rules of others are hidden. None: nothing is."""
    outcome = Outcome(flaws=[flaw for each in folders for flaw in each.flaws])
    with transaction.atomic():
        with connection.cursor() as cursor:  # several processes may do this at the same time
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        rules = {rule.slug: rule for rule in Rule.objects.select_for_update().filter(owner=None).order_by("pk")}
        wanted = dict(chosen(folders, known=rules))
        make({slug: says for slug, says in wanted.items() if slug not in rules}, outcome)
        for slug in wanted.keys() & rules.keys():
            renew(rules[slug], wanted[slug], outcome)
        if present is not None:
            hide([rule for slug, rule in rules.items() if slug not in present and not rule.deleted_at], outcome)
    tell(outcome)
    return outcome


def tell(outcome: Outcome) -> None:
    """Log what became of the rules, and each flaw once in the life of the process: the tick finds it every minute."""
    news = set(outcome.flaws) - told
    told.update(news)
    for flaw in sorted(news, key=str):
        log.error("rule_file_unusable", file=flaw.file, pointer=flaw.pointer, reason=flaw.detail)
    if counts := outcome.counts():
        log.info("rules_loaded", **counts)


def chosen(folders: list[Folder], *, known: Iterable[str | None]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield what each rule is to say: the last folder's word. Where that file is bad, what is known stays."""
    last = {slug: folder for folder in folders for slug in folder.slugs}
    says = {slug: said for folder in folders for slug, said in folder.says.items()}
    for slug, said in says.items():
        if slug in last[slug].says or slug not in known:
            yield slug, said


def make(wanted: dict[str, dict[str, Any]], outcome: Outcome) -> None:
    made = Rule.objects.bulk_create(Rule(owner=None, slug=slug, **says) for slug, says in sorted(wanted.items()))
    RuleVersion.objects.bulk_create(editing.version_of(rule) for rule in made)
    outcome.made += [str(rule.slug) for rule in made]


def renew(rule: Rule, says: dict[str, Any], outcome: Outcome) -> None:
    if rule.deleted_at:
        rule.deleted_at = None
        rule.save(update_fields=["deleted_at", "updated_at"])
        outcome.restored.append(str(rule.slug))
    if editing.apply(rule, **says):
        outcome.changed.append(str(rule.slug))


def hide(rules: list[Rule], outcome: Outcome) -> None:
    Rule.objects.filter(pk__in=[rule.pk for rule in rules]).update(deleted_at=timezone.now())
    outcome.hidden += [str(rule.slug) for rule in rules]
