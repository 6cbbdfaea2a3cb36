from django.urls import path, register_converter

from exports.api import downloads, event_stream, views, webhooks
from exports.api.serializers import as_day


class DayConverter:
    """A date in a path, strictly YYYY-MM-DD."""

    regex = "[0-9]{4}-[0-9]{2}-[0-9]{2}"

    def to_python(self, value: str) -> object:
        day = as_day(value)
        if day is None:
            raise ValueError(value)
        return day

    def to_url(self, value: object) -> str:
        return str(value)


register_converter(DayConverter, "day")

urlpatterns = [
    path("exports", views.Exports.as_view()),
    path("exports/datasets", views.Datasets.as_view()),
    path("exports/limits", views.Limits.as_view()),
    path("exports/preview", views.Preview.as_view()),
    path("exports/webhooks", webhooks.Webhooks.as_view()),
    path("exports/webhooks/<uuid:webhook_id>", webhooks.OneWebhook.as_view()),
    path("exports/webhooks/<uuid:webhook_id>/test", webhooks.Test.as_view()),
    path("exports/webhooks/<uuid:webhook_id>/rotate-secret", webhooks.Rotation.as_view()),
    path("exports/webhooks/<uuid:webhook_id>/deliveries", webhooks.Deliveries.as_view()),
    path("exports/webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver", webhooks.Redelivery.as_view()),
    path("exports/<uuid:job_id>", views.Export.as_view()),
    path("exports/<uuid:job_id>/chunks", views.Chunks.as_view()),
    path("exports/<uuid:job_id>/events", event_stream.Events.as_view()),
    path("exports/<uuid:job_id>/cancel", views.Cancel.as_view()),
    path("exports/<uuid:job_id>/replay", views.Replay.as_view()),
    path("exports/<uuid:job_id>/retry", views.Retry.as_view()),
    path("exports/<uuid:job_id>/link", downloads.FreshLink.as_view()),
    path("exports/<uuid:job_id>/download", downloads.Download.as_view()),
    path("exports/<uuid:job_id>/files/<str:key>/<day:effective_date>", downloads.File.as_view()),
]
