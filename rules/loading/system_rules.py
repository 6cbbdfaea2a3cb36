"""System rules: rules that are loaded into the database from the included files and from ETL_RULES_DIR.

The slug of a file, its name without the extension, identifies the rule. A new file creates a rule, and a changed file
creates a version. If a file is missing, its rule is hidden until the file exists again. A file in ETL_RULES_DIR
replaces the included file with the same slug.

`migrate` and `manage.py load_rules` load everything. A periodic task loads additions and changes in ETL_RULES_DIR every
minute, so that no restart is needed. It hides no rules and ignores the included files, because its worker may run an
older release than the database, or may not have the folder.
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
reported_errors: set[FileError] = set()
LOCK = 7_017_460_288_391  # arbitrary key of an advisory lock


@dataclass(slots=True)
class Outcome:
    """Slugs of the rules that were created, changed, restored, or hidden, and the errors of files."""

    created: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    errors: list[FileError] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        names = ("created", "changed", "restored", "hidden")
        return {name: len(getattr(self, name)) for name in names if getattr(self, name)}


def custom_folder() -> Path:
    """Return ETL_RULES_DIR. A relative path is relative to the project's folder."""
    return Path(settings.BASE_DIR) / settings.SLUICE.etl_rules_dir


def load_all() -> Outcome:
    """Make the system rules match the files. The rule of an invalid file does not change.

    If ETL_RULES_DIR does not exist, no rule is hidden, because a host without the folder must not hide rules from other
    hosts. But replaced rules are reset to the included files. If the folder is empty, its rules are hidden.
    """
    included, custom = parsing.read(SHIPPED) or Folder(), parsing.read(custom_folder())
    present = included.slugs | custom.slugs if custom else None
    return store([included, custom] if custom else [included], present=present)


def load_changes() -> Outcome:
    """Load additions and changes in ETL_RULES_DIR, without hiding rules."""
    custom = parsing.read(custom_folder())
    return store([custom], present=None) if custom and custom.slugs else Outcome()


def store(folders: list[Folder], *, present: set[str] | None) -> Outcome:
    """Store the rules of the folders.

    `present`: the slugs of all files; rules with other slugs are hidden. If it is None, no rules are hidden.
    """
    outcome = Outcome(errors=[error for each in folders for error in each.errors])
    with transaction.atomic():
        # Several processes may load rules at the same time.
        sql.scalar("SELECT pg_advisory_xact_lock(%(lock)s)", lock=LOCK)
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
    """Log the changes, and each error only once per process, because the periodic task finds it every minute."""
    new = set(outcome.errors) - reported_errors
    reported_errors.update(new)
    for error in sorted(new, key=str):
        log.error("rule_file_unusable", file=error.file, pointer=error.pointer, reason=error.detail)
    if counts := outcome.counts():
        log.info("rules_loaded", **counts)


def select(folders: list[Folder], *, known: Iterable[str | None]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the content of each rule from the last folder that has its file.

    If that file is invalid, an existing rule is not changed, and a new rule is created from an earlier folder.
    """
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
