"""API view of rule tests. It is here because `rules` must not import post-processing."""

from functools import partial

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.platform.http import large_bodies
from config.platform.http.auth import user_of
from config.platform.http.openapi.responses import problems
from config.platform.http.problems import BadInput, BodyTooLarge
from config.platform.http.renderers import ExactJSONRenderer
from etl.api import openapi
from etl.api.serializers import TrialSerializer
from etl.pipeline import quotas, schemas, trial
from rules.api import openapi as rules_openapi
from rules.api import rates
from rules.library import access, catalog
from rules.library.access import NoSuchRule


class RuleTrialView(APIView):
    """`POST /api/v1/etl/rules/{rule_id}/test`."""

    throttle_classes = (rates.DocumentThrottle,)
    renderer_classes = (ExactJSONRenderer,)

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
            ),
        },
    )
    def post(self, request: Request, rule_id: int) -> Response:
        user = user_of(request)
        rule = catalog.as_content(access.visible(user, rule_id))
        markdown = TrialSerializer.read(request.data)["markdown"]
        end_turn = partial(large_bodies.end_turn, request._request)
        return Response(trial.run(rule, markdown=markdown, user=user, before_wait=end_turn))
