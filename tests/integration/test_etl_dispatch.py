"""The messages that wake workers for documents."""

import json

import pytest
from celery import current_app
from django.contrib.auth.models import User

from etl import tasks
from etl.core.states import Phase
from etl.pipeline import dispatch
from tests.broker import lose_messages, valkey
from tests.integration.etl_factories import make_row

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("phase", "queue"), [(Phase.OCR, "etl-ocr"), (Phase.POSTPROCESS, "etl-postprocess")])
def test_messages_do_not_carry_time_limits(alice: User, phase: Phase, queue: str) -> None:
    """B9: those of the worker hold, and not those of whoever sends, which may have been started with others."""
    assert current_app.tasks[dispatch.OCR].time_limit == tasks.ocr.time_limit
    assert tasks.ocr.time_limit
    lose_messages()
    dispatch.start(task_id=make_row(alice).pk, phase=phase)

    (message,) = valkey().lrange(queue, 0, -1)
    sent = json.loads(message)
    assert sent["headers"]["timelimit"] == [None, None]
