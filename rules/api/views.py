"""API views of rules. Each translates the request, calls one function, and translates the result."""

from operator import attrgetter
from typing import Any

from drf_spectacular.utils import OpenApiResponse, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.platform.http.audit import CHANGES
from config.platform.http.auth import user_of
from config.platform.http.openapi.responses import problems
from config.platform.http.parsers import ExactJSONParser
from config.platform.http.problems import BadInput
from config.platform.http.renderers import ExactJSONRenderer
from config.platform.http.scopes import RULES
from rules.api import openapi, rates, representation, schemas
from rules.library import access, catalog, editing
from rules.library.access import NoSuchRule, NotYourRule, ReadOnlyRule
from rules.library.quotas import QuotaExceeded
from rules.library.serializers import RuleSerializer
from rules.models import Rule


@extend_schema_view(
    get=openapi.operation(
        operation_id="listRules",
        **openapi.LIST,
        responses={200: list[schemas.Rule], **problems(BadInput)},
    )
)
class RuleListView(generics.ListAPIView[Rule]):
    """`GET /api/v1/etl/rules`: lists the rules that the user can see. `POST /api/v1/etl/rules`: creates one."""

    audited = CHANGES
    scopes = RULES
    throttle_classes = (rates.EtlThrottle,)
    parser_classes, renderer_classes = (ExactJSONParser,), (ExactJSONRenderer,)
    ordering = ("-created_at", "-rule_id")
    row_bytes = staticmethod(attrgetter("text_bytes"))

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        rules = catalog.visible_to(user_of(request)).with_text_bytes()
        page = self.paginate_queryset(rules) or []
        return self.get_paginated_response([representation.rule(rule) for rule in page])

    @openapi.operation(
        operation_id="createRule",
        **openapi.CREATE,
        request=RuleSerializer,
        responses={201: openapi.CREATED, **problems(BadInput, QuotaExceeded)},
    )
    def post(self, request: Request) -> Response:
        values = RuleSerializer.read(request.data)
        rule = editing.create(owner=user_of(request), values=values)
        headers = {"Location": f"/api/v1/etl/rules/{rule.pk}"}
        return Response(representation.rule(rule), status=201, headers=headers)


class RuleView(APIView):
    """`GET`, `PUT`, `PATCH` and `DELETE /api/v1/etl/rules/{rule_id}`."""

    audited = CHANGES
    scopes = RULES
    throttle_classes = (rates.EtlThrottle,)
    parser_classes, renderer_classes = (ExactJSONParser,), (ExactJSONRenderer,)

    @openapi.operation(
        operation_id="getRule",
        **openapi.GET,
        responses={200: schemas.Rule, **problems(NoSuchRule)},
    )
    def get(self, request: Request, rule_id: int) -> Response:
        return Response(representation.rule(access.visible(user_of(request), rule_id)))

    @openapi.operation(
        operation_id="replaceRule",
        **openapi.REPLACE,
        request=RuleSerializer,
        responses={200: schemas.Rule, **problems(BadInput, NoSuchRule, ReadOnlyRule, NotYourRule, QuotaExceeded)},
    )
    def put(self, request: Request, rule_id: int) -> Response:
        return self.change(request, rule_id, partial=False)

    @openapi.operation(
        operation_id="changeRule",
        **openapi.CHANGE,
        request=RuleSerializer,
        responses={200: schemas.Rule, **problems(BadInput, NoSuchRule, ReadOnlyRule, NotYourRule, QuotaExceeded)},
    )
    def patch(self, request: Request, rule_id: int) -> Response:
        return self.change(request, rule_id, partial=True)

    def change(self, request: Request, rule_id: int, *, partial: bool) -> Response:
        rules = access.changeable(user_of(request), rule_id)
        values = RuleSerializer.read(request.data, partial=partial)
        try:
            rule = editing.change(rules, rule_id, **values)
        except Rule.DoesNotExist:  # deleted in the meantime
            raise NoSuchRule from None
        return Response(representation.rule(rule))

    @openapi.operation(
        operation_id="deleteRule",
        **openapi.DELETE,
        responses={
            204: OpenApiResponse(description="The rule was deleted."),
            **problems(NoSuchRule, ReadOnlyRule, NotYourRule),
        },
    )
    def delete(self, request: Request, rule_id: int) -> Response:
        editing.delete(access.changeable(user_of(request), rule_id), rule_id)
        return Response(status=204)
