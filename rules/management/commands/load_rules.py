from typing import Any

from django.core.management.base import BaseCommand, CommandError

from rules.loading import system_rules


class Command(BaseCommand):
    help = "Loads the system rules: those that come with Sluice, and the files in ETL_RULES_DIR. Hides what is gone."

    def handle(self, **_options: Any) -> None:
        outcome = system_rules.load_all()
        for word in ("made", "changed", "restored", "hidden"):
            for slug in getattr(outcome, word):
                self.stdout.write(f"{word}: {slug}")
        if outcome.flaws:
            raise CommandError("\n".join(map(str, outcome.flaws)))
