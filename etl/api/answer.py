"""API view of the unusable model response of a failed task."""

from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse
from rest_framework.request import Request

from config.platform import storage
from config.platform.http.audit import OPENS_DATA
from config.platform.http.auth import user_of
from config.platform.http.negotiation import IgnoreAccept
from config.platform.http.openapi.responses import problems
from config.platform.http.problems import NotFound, StorageUnavailable
from etl.api import lookup, openapi
from etl.api.markdown import stream_artifact
from etl.api.views import TaskAPIView, visible
from etl.ingest import acceptance
from etl.pipeline import artifacts
from etl.pipeline.actions import NoSuchTask
from etl.pipeline.artifacts import ArtifactOwner


class NoAnswer(NotFound):
    code = "no_answer"
    detail = "The task did not fail because of a language model's response, or the response is no longer stored."


def find(owner: ArtifactOwner) -> str:
    """Return the key of the stored response of a failed run, or "". Raises StorageUnavailable."""
    key = artifacts.answer_key(owner)
    with acceptance.translate_storage_errors():
        return key if storage.head(key) else ""


def is_stored(owner: ArtifactOwner) -> bool:
    """Return whether the response is stored. False if the object storage is unavailable."""
    try:
        return bool(find(owner))
    except StorageUnavailable:
        return False


class AnswerView(TaskAPIView):
    """`GET /tasks/{id}/answer`."""

    audited = OPENS_DATA
    content_negotiation_class = IgnoreAccept

    @openapi.operation(
        operation_id="getAnswer",
        **openapi.ANSWER,
        responses={
            (200, "text/plain"): OpenApiResponse(
                OpenApiTypes.STR, "The response as JSON, or as text if it is not JSON. The content is untrusted."
            ),
            **problems(NoSuchTask, NoAnswer, StorageUnavailable),
        },
    )
    def get(self, request: Request, task_id: int) -> HttpResponseBase:
        state = visible(request, task_id)
        key = find(state)
        if not key:
            raise NoAnswer
        lookup.record_access(state, user=user_of(request), message="Over the API: opened the model's response.")
        return stream_artifact(key, request, content_type=artifacts.TEXT)
