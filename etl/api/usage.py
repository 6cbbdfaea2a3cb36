"""API views of limits and model usage."""

from datetime import timedelta

from rest_framework.request import Request
from rest_framework.response import Response

from config.platform.db import clock
from config.platform.http.audit import CHANGES
from config.platform.http.auth import user_of
from config.platform.http.openapi.responses import problems
from config.platform.http.problems import BadInput
from etl.api import openapi
from etl.api.serializers import read_number
from etl.api.views import TaskAPIView
from etl.models import ModelUsage
from etl.pipeline import budgets, quotas, representation, schemas
from rules.library import quotas as rule_quotas

DAYS, MAX_DAYS = 30, 366


class LimitsView(TaskAPIView):
    """`GET /limits`: the quota with its usage, and the other limits."""

    audited = CHANGES

    @openapi.operation(operation_id="getDocumentLimits", **openapi.LIMITS, responses={200: schemas.DocumentLimits})
    def get(self, request: Request) -> Response:
        user = user_of(request)
        limits = representation.limits(
            quotas.state(user.pk),
            user_id=user.pk,
            rule_versions=rule_quotas.used_today(user.pk),
            tokens=budgets.state(user.pk, 0),
            rules=budgets.of_rules(user),
        )
        return Response(limits)


class UsageView(TaskAPIView):
    """`GET /usage`: the user's model calls and tokens, by day."""

    audited = CHANGES

    @openapi.operation(
        operation_id="getModelUsage",
        **openapi.USAGE,
        responses={200: schemas.UsageReport, **problems(BadInput)},
    )
    def get(self, request: Request) -> Response:
        days = read_number(request, "days", minimum=1, maximum=MAX_DAYS, default=DAYS, unit="days")
        today = clock.now().date()
        found = ModelUsage.objects.filter(user=user_of(request)).between(today - timedelta(days=days - 1), today)
        return Response({"total": found.totals(), "days": found.by_day()})
