"""The HTTP interface of webhooks. They are their owner's alone: they lead to data, so staff get 404 too."""

from typing import Any, ClassVar
from uuid import UUID

from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import generics, serializers
from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.api.auth import user_of
from config.api.problems import BadInput
from config.api.problems import NotFound as NothingHere
from config.api.schema import problems
from config.api.serializers import StrictSerializer
from exports import endpoints, representation, schemas, webhooks
from exports.models import Delivery, Webhook
from exports.models.webhook import Hook
from exports.serializers import StrictBoolean


@schemas.HOOKS
class EventsField(serializers.Field[list[str], Any, list[str], Any]):
    """Which ends to be told of; whatever is wrong with the list is told at the list."""

    default_error_messages: ClassVar = {
        "invalid": f"Must be a list of some of: {', '.join(sorted(Hook.values))}.",
        "empty": "Must not be empty.",
        "duplicate": "Must not name an event twice.",
    }

    def to_internal_value(self, data: Any) -> list[str]:
        if not isinstance(data, list) or not all(isinstance(event, str) and event in Hook.values for event in data):
            self.fail("invalid")
        if not data:
            self.fail("empty")
        if len(set(data)) < len(data):
            self.fail("duplicate")
        return list(data)

    def to_representation(self, value: list[str]) -> list[str]:
        return value


@schemas.RECEIVER
class ReceiverField(serializers.Field[str, Any, str, Any]):
    """A URL that webhooks may lead to, by what the DNS says now."""

    default_error_messages: ClassVar = {"invalid": "Must be a string."}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        try:
            endpoints.check(data)
        except endpoints.Refused as refused:
            raise ValidationError([ErrorDetail(refused.detail, code=refused.code)]) from None
        return data

    def to_representation(self, value: str) -> str:
        return value


class NewWebhookSerializer(StrictSerializer):
    """Where to, and what of."""

    url = ReceiverField()
    events = EventsField()


class WebhookChangeSerializer(StrictSerializer):
    """What is left out stays as it is."""

    url = ReceiverField(required=False)
    events = EventsField(required=False)
    enabled = StrictBoolean(
        required=False, help_text="True begins anew: what failed is forgotten, what waits goes out."
    )


def mine(request: Request, webhook_id: UUID) -> Webhook:
    webhook = Webhook.objects.filter(pk=webhook_id, user_id=user_of(request).pk).first()
    if webhook is None:
        raise webhooks.NoSuchWebhook
    return webhook


@extend_schema_view(
    get=extend_schema(
        operation_id="listWebhooks",
        summary="List my webhooks",
        description="Newest first.",
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
        summary="Be told when exports end",
        request=NewWebhookSerializer,
        parameters=[schemas.location(201, "The webhook.")],
        responses={201: schemas.NewWebhook, **problems(BadInput, webhooks.TooManyWebhooks)},
    )
    def post(self, request: Request) -> Response:
        """Ends from now on are posted to `url`, signed as [Standard Webhooks](https://www.standardwebhooks.com) says.
        The `secret` to check signatures with is in this answer alone. A user may have 100 webhooks."""
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
        summary="Look at a webhook",
        responses={200: schemas.Webhook, **problems(NothingHere)},
    )
    def get(self, request: Request, webhook_id: UUID) -> Response:
        return Response(representation.webhook(mine(request, webhook_id)))

    @extend_schema(
        operation_id="changeWebhook",
        summary="Change a webhook",
        request=WebhookChangeSerializer,
        responses={200: schemas.Webhook, **problems(BadInput, NothingHere)},
    )
    def patch(self, request: Request, webhook_id: UUID) -> Response:
        webhook = mine(request, webhook_id)
        serializer = WebhookChangeSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        return Response(representation.webhook(webhooks.change(webhook, **serializer.validated_data)))

    @extend_schema(
        operation_id="deleteWebhook",
        summary="Delete a webhook",
        description="With all its deliveries, also those that wait.",
        responses={204: OpenApiResponse(description="It is gone."), **problems(NothingHere)},
    )
    def delete(self, request: Request, webhook_id: UUID) -> Response:
        webhooks.delete(mine(request, webhook_id))
        return Response(status=204)


class Rotation(APIView):
    """`POST /exports/webhooks/{webhookId}/rotate-secret`: a new secret; the old one signs too for a day."""

    @extend_schema(
        operation_id="rotateWebhookSecret",
        summary="Get a new secret",
        description="The old one goes on signing beside it for 24 hours. One that was replaced before ends at once.",
        request=None,
        responses={200: schemas.Secret, **problems(NothingHere)},
    )
    def post(self, request: Request, webhook_id: UUID) -> Response:
        secret = webhooks.rotate_secret(mine(request, webhook_id))
        return Response({"secret": secret}, headers={"Cache-Control": "no-store"})


class Test(APIView):
    """`POST /exports/webhooks/{webhookId}/test`: a delivery of the type `webhook.test`."""

    @extend_schema(
        operation_id="testWebhook",
        summary="Send a test",
        description="Its type is `webhook.test`. It goes out even while the webhook is disabled, in one attempt. "
        "There is one test at a time: `delivery_pending` until it has ended.",
        request=None,
        responses={202: schemas.WebhookDelivery, **problems(NothingHere, webhooks.DeliveryPending)},
    )
    def post(self, request: Request, webhook_id: UUID) -> Response:
        return Response(representation.delivery(webhooks.ping(mine(request, webhook_id))), status=202)


@extend_schema_view(
    get=extend_schema(
        operation_id="listDeliveries",
        summary="List what was sent",
        description="Newest first, each with the log of its newest 20 attempts; 30 days back.",
        responses={200: schemas.WebhookDelivery(many=True), **problems(BadInput, NothingHere)},
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
        summary="Send a delivery again",
        description="The same `webhook-id` and the same bytes, with all attempts; a test has one.",
        request=None,
        responses={
            202: schemas.WebhookDelivery,
            **problems(NothingHere, webhooks.DeliveryPending, webhooks.WebhookDisabled),
        },
    )
    def post(self, request: Request, webhook_id: UUID, delivery_id: UUID) -> Response:
        deliveries = Delivery.objects.filter(webhook=mine(request, webhook_id))
        found = representation.with_log(deliveries).filter(pk=delivery_id).first()
        if found is None:
            raise webhooks.NoSuchDelivery
        webhooks.redeliver(found)
        return Response(representation.delivery(found), status=202)
