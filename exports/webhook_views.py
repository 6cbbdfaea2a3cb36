"""The HTTP interface of webhooks. They are their owner's alone: they lead to data, so staff get 404 too."""

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.api.auth import user_of
from config.api.problems import BadInput
from config.api.schema import problems
from config.api.serializers import Nothing
from exports import operations, representation, schemas, webhooks
from exports.models import Delivery, Webhook
from exports.webhook_serializers import NewWebhookSerializer, WebhookChangeSerializer


def mine(request: Request, webhook_id: UUID) -> Webhook:
    return webhooks.owned(webhook_id, user_id=user_of(request).pk)


@extend_schema_view(
    get=extend_schema(
        operation_id="listWebhooks",
        **operations.LIST_WEBHOOKS,
        responses={200: schemas.Webhook(many=True), **problems(BadInput)},
    )
)
class Webhooks(generics.ListAPIView[Webhook]):
    """`GET /exports/webhooks`: mine. `POST /exports/webhooks`: a new one."""

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(Webhook.objects.filter(user_id=user_of(request).pk)) or []
        return self.get_paginated_response([representation.webhook(webhook) for webhook in page])

    @extend_schema(
        operation_id="createWebhook",
        **operations.CREATE_WEBHOOK,
        request=NewWebhookSerializer,
        responses={201: operations.MADE, **problems(BadInput, webhooks.TooManyWebhooks)},
    )
    def post(self, request: Request) -> Response:
        serializer = NewWebhookSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        made = webhooks.create(user_id=user_of(request).pk, **serializer.validated_data)
        answer = {**representation.webhook(made), "secret": made.secret}
        headers = {"Location": f"/exports/webhooks/{made.pk}", "Cache-Control": "no-store"}
        return Response(answer, status=201, headers=headers)


class OneWebhook(APIView):
    """`GET`, `PATCH` and `DELETE /exports/webhooks/{webhookId}`."""

    @extend_schema(
        operation_id="getWebhook",
        **operations.GET_WEBHOOK,
        responses={200: schemas.Webhook, **problems(webhooks.NoSuchWebhook)},
    )
    def get(self, request: Request, webhook_id: UUID) -> Response:
        return Response(representation.webhook(mine(request, webhook_id)))

    @extend_schema(
        operation_id="changeWebhook",
        **operations.CHANGE_WEBHOOK,
        request=WebhookChangeSerializer,
        responses={200: schemas.Webhook, **problems(BadInput, webhooks.NoSuchWebhook)},
    )
    def patch(self, request: Request, webhook_id: UUID) -> Response:
        webhook = mine(request, webhook_id)
        serializer = WebhookChangeSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        return Response(representation.webhook(webhooks.change(webhook, **serializer.validated_data)))

    @extend_schema(
        operation_id="deleteWebhook",
        **operations.DELETE_WEBHOOK,
        responses={204: OpenApiResponse(description="It is gone."), **problems(webhooks.NoSuchWebhook)},
    )
    def delete(self, request: Request, webhook_id: UUID) -> Response:
        webhooks.delete(mine(request, webhook_id))
        return Response(status=204)


class Rotation(APIView):
    """`POST /exports/webhooks/{webhookId}/rotate-secret`: a new secret; the old one signs too for a day."""

    @extend_schema(
        operation_id="rotateWebhookSecret",
        **operations.ROTATE,
        request=None,
        responses={200: schemas.Secret, **problems(BadInput, webhooks.NoSuchWebhook)},
    )
    def post(self, request: Request, webhook_id: UUID) -> Response:
        webhook = mine(request, webhook_id)
        Nothing.read(request.data)
        secret = webhooks.rotate_secret(webhook)
        return Response({"secret": secret}, headers={"Cache-Control": "no-store"})


class Test(APIView):
    """`POST /exports/webhooks/{webhookId}/test`: a delivery of the type `webhook.test`."""

    @extend_schema(
        operation_id="testWebhook",
        **operations.TEST,
        request=None,
        responses={
            202: operations.TESTED,
            **problems(BadInput, webhooks.NoSuchWebhook, webhooks.DeliveryPending),
        },
    )
    def post(self, request: Request, webhook_id: UUID) -> Response:
        webhook = mine(request, webhook_id)
        Nothing.read(request.data)
        return Response(representation.delivery(webhooks.ping(webhook)), status=202)


@extend_schema_view(
    get=extend_schema(
        operation_id="listDeliveries",
        **operations.DELIVERIES,
        responses={200: schemas.WebhookDelivery(many=True), **problems(BadInput, webhooks.NoSuchWebhook)},
    )
)
class Deliveries(generics.ListAPIView[Delivery]):
    """`GET /exports/webhooks/{webhookId}/deliveries`."""

    ordering = ("-created_at", "-id")

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        webhook = mine(request, self.kwargs["webhook_id"])
        page = self.paginate_queryset(representation.with_log(Delivery.objects.filter(webhook=webhook))) or []
        return self.get_paginated_response([representation.delivery(delivery) for delivery in page])


class Redelivery(APIView):
    """`POST /exports/webhooks/{webhookId}/deliveries/{deliveryId}/redeliver`: the same once more."""

    @extend_schema(
        operation_id="redeliver",
        **operations.REDELIVER,
        request=None,
        responses={
            202: schemas.WebhookDelivery,
            **problems(BadInput, webhooks.NoSuchDelivery, webhooks.DeliveryPending, webhooks.WebhookDisabled),
        },
    )
    def post(self, request: Request, webhook_id: UUID, delivery_id: UUID) -> Response:
        found = webhooks.delivery_of(mine(request, webhook_id), delivery_id)
        Nothing.read(request.data)
        webhooks.redeliver(found)
        return Response(representation.delivery(found), status=202)
