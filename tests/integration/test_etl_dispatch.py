"""Wake-up messages for documents."""

import json

import pytest
from celery import current_app
from django.contrib.auth.models import User

from etl import tasks
from etl.core.states import Stage
from etl.pipeline import dispatch
from tests.broker import lose_messages, valkey
from tests.integration.etl_factories import make_row

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("stage", "queue"), [(Stage.OCR, "etl-ocr"), (Stage.POSTPROCESS, "etl-postprocess")])
def test_messages_do_not_carry_time_limits(alice: User, stage: Stage, queue: str) -> None:
    """B9: the limits of the worker apply. The sender may have other settings."""
    assert current_app.tasks[dispatch.OCR].time_limit == tasks.ocr.time_limit
    assert tasks.ocr.time_limit
    lose_messages()
    dispatch.wake(task_id=make_row(alice).pk, stage=stage)

    (message,) = valkey().lrange(queue, 0, -1)
    sent = json.loads(message)
    assert sent["headers"]["timelimit"] == [None, None]
