from django.urls import path

from exports.pages import deliveries, webhook_actions, webhooks

urlpatterns = [
    path("app/webhooks", webhooks.Webhooks.as_view(), name="webhooks"),
    path("app/webhooks/<uuid:webhook_id>", webhooks.OneWebhook.as_view(), name="webhook"),
    path("app/webhooks/<uuid:webhook_id>/test", webhook_actions.Test.as_view(), name="test-webhook"),
    path("app/webhooks/<uuid:webhook_id>/enable", webhook_actions.Enable.as_view(), name="enable-webhook"),
    path("app/webhooks/<uuid:webhook_id>/disable", webhook_actions.Disable.as_view(), name="disable-webhook"),
    path("app/webhooks/<uuid:webhook_id>/secret", webhook_actions.NewSecret.as_view(), name="rotate-webhook"),
    path("app/webhooks/<uuid:webhook_id>/delete", webhook_actions.Delete.as_view(), name="delete-webhook"),
    path(
        "app/webhooks/<uuid:webhook_id>/redeliver",
        webhook_actions.RedeliverFailed.as_view(), name="redeliver-failed",
    ),
    path(
        "app/webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>",
        deliveries.OneDelivery.as_view(), name="delivery",
    ),
    path(
        "app/webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver",
        webhook_actions.Redeliver.as_view(), name="redeliver",
    ),
]  # fmt: skip
