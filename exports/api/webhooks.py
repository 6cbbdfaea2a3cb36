"""API views of webhooks. Only the owner can access a webhook: staff also get 404.

The paths `/webhooks`, `/exports/webhooks`, and `/api/v1/etl/webhooks` are the same resource.
"""

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.platform.http.audit import CHANGES
from config.platform.http.auth import user_of
from config.platform.http.openapi.responses import problems
from config.platform.http.problems import BadInput
from config.platform.http.responses import SECRET
from config.platform.http.scopes import WEBHOOKS
from config.platform.http.serializers import EmptyBody
from config.platform.webhooks import representation, schemas, subscriptions
from exports.api import openapi
from exports.api.webhook_serializers import NewWebhookSerializer, WebhookChangeSerializer
from exports.models import Delivery, Webhook


def mine(request: Request, webhook_id: UUID) -> Webhook:
    return subscriptions.owned(webhook_id, user_id=user_of(request).pk)


@extend_schema_view(
    get=extend_schema(
        operation_id="listWebhooks",
        **openapi.LIST_WEBHOOKS,
        responses={200: list[schemas.Webhook], **problems(BadInput)},
    )
)
class WebhookListView(generics.ListAPIView[Webhook]):
    """`GET /webhooks`: lists the webhooks. `POST /webhooks`: creates one."""

    audited = CHANGES
    scopes = WEBHOOKS

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(Webhook.objects.filter(user_id=user_of(request).pk)) or []
        return self.get_paginated_response([representation.webhook(webhook) for webhook in page])

    @extend_schema(
        operation_id="createWebhook",
        **openapi.CREATE_WEBHOOK,
        request=NewWebhookSerializer,
        responses={201: openapi.CREATED, **problems(BadInput, subscriptions.TooManyWebhooks)},
    )
    def post(self, request: Request) -> Response:
        fields = NewWebhookSerializer.read(request.data)
        webhook = subscriptions.create(user_id=user_of(request).pk, **fields)
        body = {**representation.webhook(webhook), "secret": webhook.secret}
        headers = {"Location": f"{request.path}/{webhook.pk}", **SECRET}
        return Response(body, status=201, headers=headers)


class WebhookView(APIView):
    """`GET`, `PATCH`, and `DELETE /webhooks/{webhookId}`."""

    audited = CHANGES
    scopes = WEBHOOKS

    @extend_schema(
        operation_id="getWebhook",
        **openapi.GET_WEBHOOK,
        responses={200: schemas.Webhook, **problems(subscriptions.NoSuchWebhook)},
    )
    def get(self, request: Request, webhook_id: UUID) -> Response:
        return Response(representation.webhook(mine(request, webhook_id)))

    @extend_schema(
        operation_id="changeWebhook",
        **openapi.CHANGE_WEBHOOK,
        request=WebhookChangeSerializer,
        responses={200: schemas.Webhook, **problems(BadInput, subscriptions.NoSuchWebhook)},
    )
    def patch(self, request: Request, webhook_id: UUID) -> Response:
        webhook = mine(request, webhook_id)
        changes = WebhookChangeSerializer.read(request.data)
        return Response(representation.webhook(subscriptions.change(webhook, **changes)))

    @extend_schema(
        operation_id="deleteWebhook",
        **openapi.DELETE_WEBHOOK,
        responses={
            204: OpenApiResponse(description="The webhook was deleted."),
            **problems(subscriptions.NoSuchWebhook),
        },
    )
    def delete(self, request: Request, webhook_id: UUID) -> Response:
        subscriptions.delete(mine(request, webhook_id))
        return Response(status=204)


class RotateSecretView(APIView):
    """`POST /webhooks/{webhookId}/rotate-secret`: returns a new secret. The old one is also used for a day."""

    scopes = WEBHOOKS

    @extend_schema(
        operation_id="rotateWebhookSecret",
        **openapi.ROTATE,
        request=None,
        responses={200: schemas.Secret, **problems(BadInput, subscriptions.NoSuchWebhook)},
    )
    def post(self, request: Request, webhook_id: UUID) -> Response:
        webhook = mine(request, webhook_id)
        EmptyBody.read(request.data)
        return Response({"secret": subscriptions.rotate_secret(webhook)}, headers=SECRET)


class TestWebhookView(APIView):
    """`POST /webhooks/{webhookId}/test`: sends a delivery of type `webhook.test`."""

    scopes = WEBHOOKS

    @extend_schema(
        operation_id="testWebhook",
        **openapi.TEST,
        request=None,
        responses={
            202: openapi.TESTED,
            **problems(BadInput, subscriptions.NoSuchWebhook, subscriptions.DeliveryPending),
        },
    )
    def post(self, request: Request, webhook_id: UUID) -> Response:
        webhook = mine(request, webhook_id)
        EmptyBody.read(request.data)
        return Response(representation.delivery(subscriptions.send_test(webhook)), status=202)


@extend_schema_view(
    get=extend_schema(
        operation_id="listDeliveries",
        **openapi.DELIVERIES,
        responses={200: list[schemas.WebhookDelivery], **problems(BadInput, subscriptions.NoSuchWebhook)},
    )
)
class DeliveryListView(generics.ListAPIView[Delivery]):
    """`GET /webhooks/{webhookId}/deliveries`."""

    audited = CHANGES
    scopes = WEBHOOKS
    ordering = ("-created_at", "-id")

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        webhook = mine(request, self.kwargs["webhook_id"])
        page = self.paginate_queryset(representation.with_log(Delivery.objects.filter(webhook=webhook))) or []
        return self.get_paginated_response([representation.delivery(delivery) for delivery in page])


class RedeliverView(APIView):
    """`POST /webhooks/{webhookId}/deliveries/{deliveryId}/redeliver`."""

    scopes = WEBHOOKS

    @extend_schema(
        operation_id="redeliver",
        **openapi.REDELIVER,
        request=None,
        responses={
            202: schemas.WebhookDelivery,
            **problems(
                BadInput, subscriptions.NoSuchDelivery, subscriptions.DeliveryPending, subscriptions.WebhookDisabled
            ),
        },
    )
    def post(self, request: Request, webhook_id: UUID, delivery_id: UUID) -> Response:
        found = subscriptions.delivery_of(mine(request, webhook_id), delivery_id)
        EmptyBody.read(request.data)
        subscriptions.redeliver(found)
        return Response(representation.delivery(found), status=202)
