from django.urls import path, register_converter

from exports import download_views, sse, views, webhook_views
from exports.serializers import as_day


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
    path("exports/webhooks", webhook_views.Webhooks.as_view()),
    path("exports/webhooks/<uuid:webhook_id>", webhook_views.OneWebhook.as_view()),
    path("exports/webhooks/<uuid:webhook_id>/test", webhook_views.Test.as_view()),
    path("exports/webhooks/<uuid:webhook_id>/rotate-secret", webhook_views.Rotation.as_view()),
    path("exports/webhooks/<uuid:webhook_id>/deliveries", webhook_views.Deliveries.as_view()),
    path(
        "exports/webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver", webhook_views.Redelivery.as_view()
    ),
    path("exports/<uuid:job_id>", views.Export.as_view()),
    path("exports/<uuid:job_id>/chunks", views.Chunks.as_view()),
    path("exports/<uuid:job_id>/events", sse.Events.as_view()),
    path("exports/<uuid:job_id>/cancel", views.Cancel.as_view()),
    path("exports/<uuid:job_id>/replay", views.Replay.as_view()),
    path("exports/<uuid:job_id>/retry", views.Retry.as_view()),
    path("exports/<uuid:job_id>/link", download_views.FreshLink.as_view()),
    path("exports/<uuid:job_id>/download", download_views.Download.as_view()),
    path("exports/<uuid:job_id>/files/<str:key>/<day:effective_date>", download_views.File.as_view()),
]
