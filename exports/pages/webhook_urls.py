from django.urls import path

from exports.pages import deliveries, webhook_actions, webhooks

urlpatterns = [
    path("app/webhooks", webhooks.WebhookListPage.as_view(), name="webhooks"),
    path("app/webhooks/<uuid:webhook_id>", webhooks.WebhookPage.as_view(), name="webhook"),
    path("app/webhooks/<uuid:webhook_id>/test", webhook_actions.TestWebhook.as_view(), name="test-webhook"),
    path("app/webhooks/<uuid:webhook_id>/enable", webhook_actions.EnableWebhook.as_view(), name="enable-webhook"),
    path("app/webhooks/<uuid:webhook_id>/disable", webhook_actions.DisableWebhook.as_view(), name="disable-webhook"),
    path("app/webhooks/<uuid:webhook_id>/secret", webhook_actions.RotateSecret.as_view(), name="rotate-webhook"),
    path("app/webhooks/<uuid:webhook_id>/delete", webhook_actions.DeleteWebhook.as_view(), name="delete-webhook"),
    path(
        "app/webhooks/<uuid:webhook_id>/redeliver",
        webhook_actions.RedeliverFailedDeliveries.as_view(), name="redeliver-failed",
    ),
    path(
        "app/webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>",
        deliveries.DeliveryPage.as_view(), name="delivery",
    ),
    path(
        "app/webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver",
        webhook_actions.RedeliverDelivery.as_view(), name="redeliver",
    ),
]  # fmt: skip
