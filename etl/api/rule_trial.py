"""API view of rule tests. It is in this app because `rules` must not import post-processing."""

from functools import partial

from django.contrib.auth.models import User
from rest_framework.request import Request
from rest_framework.response import Response

from config.platform.http import large_bodies
from config.platform.http.auth import user_of
from config.platform.http.openapi.responses import problems
from config.platform.http.problems import BadInput, BodyTooLarge, InputError, StorageUnavailable
from config.platform.http.scopes import RULES, require_scope
from etl.api import lookup, openapi
from etl.api.serializers import TrialSerializer
from etl.api.views import TaskAPIView
from etl.pipeline import engines, quotas, schemas, trial
from etl.runstate import RunState
from rules.api import openapi as rules_openapi
from rules.library import access, catalog
from rules.library.access import NoSuchRule


class RuleTrialView(TaskAPIView):
    """`POST /api/v1/etl/rules/{rule_id}/test`."""

    scopes = RULES

    @rules_openapi.operation(
        operation_id="testRule",
        **openapi.TRIAL,
        request=TrialSerializer,
        responses={
            200: schemas.RULE_TRIAL,
            **problems(
                BadInput,
                NoSuchRule,
                BodyTooLarge,
                trial.TooManyTrials,
                trial.TooManyTrialsOfUser,
                quotas.QuotaExceeded,
                StorageUnavailable,
            ),
        },
    )
    def post(self, request: Request, rule_id: int) -> Response:
        user = user_of(request)
        rule = catalog.as_content(access.visible(user, rule_id))
        fields = TrialSerializer.read(request.data)
        if "task_id" in fields:
            require_scope(request, "documents:read")
        document = None
        if "task_id" in fields and engines.reads_images(rule):
            document = self.document(fields["task_id"], user)
        end_turn = partial(large_bodies.end_turn, request._request)
        found = trial.run(rule, markdown=fields["markdown"], user=user, before_wait=end_turn, document=document)
        return Response(found)

    def document(self, task_id: int, user: User) -> RunState:
        """Return the document whose pages the model gets as images. Raises BadInput."""
        state = lookup.find(task_id, user=user)
        if state is None:
            raise BadInput(InputError(pointer="/task_id", code="unknown_task", detail="Task not found."))
        lookup.record_access(state, user=user, message="Over the API: opened the pages to test a rule.")
        return state
