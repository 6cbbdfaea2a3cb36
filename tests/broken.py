"""A view and Celery tasks that fail, for tests of error reports. `tests/broken_settings.py` enables them."""

from typing import NoReturn

from celery import shared_task
from django.http import HttpRequest
from django.urls import path
from structlog import get_logger

from config.urls import urlpatterns as ours

log = get_logger(__name__)


def crash(_request: HttpRequest | None = None, *, word: str) -> NoReturn:
    local = f"pearl of {word}"
    raise ZeroDivisionError(f"Row: ({local})")


urlpatterns = [path("broken/<str:word>", crash), *ours]


@shared_task(name="tests.crash")
def crash_task(*, word: str, **_later: object) -> None:
    """Log an exception and raise it again. Only one error report must be sent."""
    try:
        crash(word=word)
    except ZeroDivisionError:
        log.exception("unexpected_error")
        raise


@shared_task(name="tests.complain")
def complain(**_later: object) -> None:
    log.error("chunk_failed", code="EXPORT_SOURCE_ERROR")
    log.warning("chunk_retrying", exc_info=ValueError("pearl"))
