from typing import Any

from django.core.management.base import BaseCommand, CommandError

from rules.loading import system_rules


class Command(BaseCommand):
    help = "Load the system rules from the included files and from ETL_RULES_DIR. Rules without a file are hidden."

    def handle(self, **_options: Any) -> None:
        outcome = system_rules.load_all()
        for word in outcome.counts():
            for slug in getattr(outcome, word):
                self.stdout.write(f"{word}: {slug}")
        if outcome.errors:
            raise CommandError("\n".join(map(str, outcome.errors)))
