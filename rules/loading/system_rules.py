"""System rules: rows that are loaded from the included files and from ETL_RULES_DIR.

A file is identified by its slug, the name without the extension. A new file creates a rule, a changed file a version,
and a missing file hides its rule until it returns. A file in ETL_RULES_DIR replaces the included one of the same name.

`migrate` and `manage.py load_rules` load everything. A periodic task also loads changes and additions in ETL_RULES_DIR
every minute, without a restart. It hides no rule and ignores the included files, because it may run in a worker that is
older than the database, or that does not have the folder.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from config.platform.db import sql
from rules.library import editing
from rules.loading import parsing
from rules.loading.parsing import FileError, Folder
from rules.models import Rule, RuleVersion

log = structlog.get_logger(__name__)

SHIPPED = Path(__file__).parent / "shipped"
reported: set[FileError] = set()
LOCK = 7_017_460_288_391  # any number, the same in all processes


@dataclass(slots=True)
class Outcome:
    """Slugs of rules by what happened to them, and the errors of files."""

    created: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    errors: list[FileError] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        names = ("created", "changed", "restored", "hidden")
        return {name: len(getattr(self, name)) for name in names if getattr(self, name)}


def folder() -> Path:
    """Return ETL_RULES_DIR. A relative path starts at the project's folder."""
    return Path(settings.BASE_DIR) / settings.SLUICE.etl_rules_dir


def load_all() -> Outcome:
    """Make the system rules equal to the files. The rule of an invalid file does not change.

    If ETL_RULES_DIR does not exist, its rules stay: a host without the folder must not hide them from other hosts. An
    empty folder hides them.
    """
    included, custom = parsing.read(SHIPPED) or Folder(), parsing.read(folder())
    present = included.slugs | custom.slugs if custom else None
    return store([included, custom] if custom else [included], present=present)


def load_changes() -> Outcome:
    """Load additions and changes in ETL_RULES_DIR. Hides no rule."""
    custom = parsing.read(folder())
    return store([custom], present=None) if custom and custom.slugs else Outcome()


def store(folders: list[Folder], *, present: set[str] | None) -> Outcome:
    """Store the rules of the folders. `present`: slugs that have a file; other rules are hidden. None hides none."""
    outcome = Outcome(errors=[error for each in folders for error in each.errors])
    with transaction.atomic():
        sql.scalar("SELECT pg_advisory_xact_lock(%(lock)s)", lock=LOCK)  # several processes may load at the same time
        rules = {rule.slug: rule for rule in Rule.objects.select_for_update().filter(owner=None).order_by("pk")}
        wanted = dict(select(folders, known=rules))
        create({slug: values for slug, values in wanted.items() if slug not in rules}, outcome)
        for slug in wanted.keys() & rules.keys():
            update(rules[slug], wanted[slug], outcome)
        if present is not None:
            hide([rule for slug, rule in rules.items() if slug not in present and not rule.deleted_at], outcome)
    log_outcome(outcome)
    return outcome


def log_outcome(outcome: Outcome) -> None:
    """Log the changes, and each error once per process, because the periodic task finds it every minute."""
    new = set(outcome.errors) - reported
    reported.update(new)
    for error in sorted(new, key=str):
        log.error("rule_file_unusable", file=error.file, pointer=error.pointer, reason=error.detail)
    if counts := outcome.counts():
        log.info("rules_loaded", **counts)


def select(folders: list[Folder], *, known: Iterable[str | None]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the content of each rule from the last folder that has it. If that file is invalid, a known rule stays."""
    last = {slug: folder for folder in folders for slug in folder.slugs}
    found = {slug: values for folder in folders for slug, values in folder.rules.items()}
    for slug, values in found.items():
        if slug in last[slug].rules or slug not in known:
            yield slug, values


def create(wanted: dict[str, dict[str, Any]], outcome: Outcome) -> None:
    rules = Rule.objects.bulk_create(Rule(owner=None, slug=slug, **values) for slug, values in sorted(wanted.items()))
    RuleVersion.objects.bulk_create(editing.version_of(rule) for rule in rules)
    outcome.created += [str(rule.slug) for rule in rules]


def update(rule: Rule, values: dict[str, Any], outcome: Outcome) -> None:
    if rule.deleted_at:
        rule.deleted_at = None
        rule.save(update_fields=["deleted_at", "updated_at"])
        outcome.restored.append(str(rule.slug))
    if editing.apply(rule, **values):
        outcome.changed.append(str(rule.slug))


def hide(rules: list[Rule], outcome: Outcome) -> None:
    Rule.objects.filter(pk__in=[rule.pk for rule in rules]).update(deleted_at=timezone.now())
    outcome.hidden += [str(rule.slug) for rule in rules]
