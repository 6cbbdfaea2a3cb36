"""Celery tasks of rules."""

from celery import shared_task

from rules.loading import system_rules


@shared_task(name="rules.load")
def load(**_later: object) -> None:
    system_rules.load_changes()
