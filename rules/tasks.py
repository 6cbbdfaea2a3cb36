"""Celery's entrance."""

from celery import shared_task

from rules import loading


@shared_task(name="rules.load")
def load(**_later: object) -> None:
    loading.load_changes()
