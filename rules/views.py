"""The HTTP interface of rules: translate, one call, translate back."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.api.auth import user_of
from config.api.problems import BadInput, NotFound, Problem
from config.api.schema import problems
from rules import catalog, editing, rates, representation, schemas
from rules.models import Rule
from rules.serializers import RuleSerializer


class NoSuchRule(NotFound):
    """There is no such rule."""


class ReadOnlyRule(Problem):
    """System rules belong to everybody, and cannot be changed here. Make a rule of your own from what this one says."""

    status = 403
    code = "system_rule"


class NotYourRule(Problem):
    """This rule is another user's. Staff may look at it, and leave it as it is."""

    status = 403
    code = "not_your_rule"


def visible(request: Request, rule_id: int) -> Rule:
    """Return the rule if the user may see it. A stranger's looks like one that is not there."""
    rule = catalog.visible_to(user_of(request)).filter(pk=rule_id).first()
    if rule is None:
        raise NoSuchRule
    return rule


def changeable(request: Request, rule_id: int) -> QuerySet[Rule]:
    """Return the rules that the user may change, after a look whether this one is among them."""
    rule = visible(request, rule_id)
    if catalog.is_system(rule):
        raise ReadOnlyRule
    if rule.owner_id != user_of(request).pk:
        raise NotYourRule
    return catalog.changeable_by(user_of(request))


@extend_schema_view(
    get=extend_schema(
        operation_id="listRules",
        **schemas.LIST,
        tags=schemas.TAGS,
        responses={200: schemas.Rule(many=True), **problems(BadInput)},
    )
)
class Rules(generics.ListAPIView[Rule]):
    """`GET /api/v1/etl/rules`: mine, and the system's. `POST /api/v1/etl/rules`: a new one."""

    throttle_classes = (rates.PerUser,)
    ordering = ("-created_at", "-rule_id")

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(catalog.visible_to(user_of(request))) or []
        return self.get_paginated_response([representation.rule(rule) for rule in page])

    @extend_schema(
        operation_id="createRule",
        **schemas.CREATE,
        tags=schemas.TAGS,
        request=RuleSerializer,
        responses={201: schemas.MADE, **problems(BadInput)},
    )
    def post(self, request: Request) -> Response:
        says = RuleSerializer.read(request.data)
        rule = editing.create(owner=user_of(request), says=says)
        headers = {"Location": f"/api/v1/etl/rules/{rule.pk}"}
        return Response(representation.rule(rule), status=201, headers=headers)


class OneRule(APIView):
    """`GET`, `PUT`, `PATCH` and `DELETE /api/v1/etl/rules/{rule_id}`."""

    throttle_classes = (rates.PerUser,)

    @extend_schema(
        operation_id="getRule",
        **schemas.GET,
        tags=schemas.TAGS,
        responses={200: schemas.Rule, **problems(NoSuchRule)},
    )
    def get(self, request: Request, rule_id: int) -> Response:
        return Response(representation.rule(visible(request, rule_id)))

    @extend_schema(
        operation_id="replaceRule",
        **schemas.REPLACE,
        tags=schemas.TAGS,
        request=RuleSerializer,
        responses={200: schemas.Rule, **problems(BadInput, NoSuchRule, ReadOnlyRule, NotYourRule)},
    )
    def put(self, request: Request, rule_id: int) -> Response:
        return self.change(request, rule_id, partial=False)

    @extend_schema(
        operation_id="changeRule",
        **schemas.CHANGE,
        tags=schemas.TAGS,
        request=RuleSerializer,
        responses={200: schemas.Rule, **problems(BadInput, NoSuchRule, ReadOnlyRule, NotYourRule)},
    )
    def patch(self, request: Request, rule_id: int) -> Response:
        return self.change(request, rule_id, partial=True)

    def change(self, request: Request, rule_id: int, *, partial: bool) -> Response:
        rules = changeable(request, rule_id)
        says = RuleSerializer.read(request.data, partial=partial)
        try:
            rule = editing.change(rules, rule_id, **says)
        except Rule.DoesNotExist:  # deleted meanwhile
            raise NoSuchRule from None
        return Response(representation.rule(rule))

    @extend_schema(
        operation_id="deleteRule",
        **schemas.DELETE,
        tags=schemas.TAGS,
        responses={204: OpenApiResponse(description="It is gone."), **problems(NoSuchRule, ReadOnlyRule, NotYourRule)},
    )
    def delete(self, request: Request, rule_id: int) -> Response:
        if not editing.delete(changeable(request, rule_id), rule_id):
            raise NoSuchRule
        return Response(status=204)
