"""API view of rule tests. It is here because `rules` must not import post-processing."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.platform.http.auth import user_of
from config.platform.http.openapi.responses import problems
from config.platform.http.problems import BadInput, BodyTooLarge
from etl.api import openapi, schemas
from etl.api.serializers import TrialSerializer
from etl.pipeline import trial
from rules.api import rates
from rules.api.openapi import TAGS
from rules.library import access, catalog
from rules.library.access import NoSuchRule


class RuleTrialView(APIView):
    """`POST /api/v1/etl/rules/{rule_id}/test`."""

    throttle_classes = (rates.DocumentThrottle,)

    @extend_schema(
        operation_id="testRule",
        **openapi.TRIAL,
        tags=TAGS,
        request=TrialSerializer,
        responses={200: schemas.RULE_TRIAL, **problems(BadInput, NoSuchRule, BodyTooLarge, trial.TooManyTrials)},
    )
    def post(self, request: Request, rule_id: int) -> Response:
        rule = catalog.as_content(access.visible(user_of(request), rule_id))
        return Response(trial.run(rule, markdown=TrialSerializer.read(request.data)["markdown"]))
