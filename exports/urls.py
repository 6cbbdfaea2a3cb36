from django.urls import path, register_converter

from config.platform.http.serializers import as_day
from exports.api import downloads, event_stream, schedules, views, webhooks


class DayConverter:
    """Converter of dates in paths, strictly in the form YYYY-MM-DD."""

    regex = "[0-9]{4}-[0-9]{2}-[0-9]{2}"

    def to_python(self, value: str) -> object:
        day = as_day(value)
        if day is None:
            raise ValueError(value)
        return day

    def to_url(self, value: object) -> str:
        return str(value)


register_converter(DayConverter, "day")

# Paths of the same resource. The API schema only has the first one, which is the oldest.
WEBHOOK_PATHS = ("exports/webhooks", "webhooks", "api/v1/etl/webhooks")
WEBHOOK_VIEWS = {
    "": webhooks.WebhookListView,
    "/<uuid:webhook_id>": webhooks.WebhookView,
    "/<uuid:webhook_id>/test": webhooks.TestWebhookView,
    "/<uuid:webhook_id>/rotate-secret": webhooks.RotateSecretView,
    "/<uuid:webhook_id>/deliveries": webhooks.DeliveryListView,
    "/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver": webhooks.RedeliverView,
}

urlpatterns = [
    path("exports", views.ExportListView.as_view()),
    path("exports/datasets", views.DatasetListView.as_view()),
    path("exports/datasets/<slug:name>", views.DatasetView.as_view()),
    path("exports/limits", views.LimitsView.as_view()),
    path("exports/preview", views.PreviewView.as_view()),
    path("exports/schedules", schedules.ScheduleListView.as_view()),
    path("exports/schedules/<uuid:schedule_id>", schedules.ScheduleView.as_view()),
    path("exports/schedules/<uuid:schedule_id>/run", schedules.RunScheduleView.as_view()),
    *(path(root + rest, view.as_view()) for root in WEBHOOK_PATHS for rest, view in WEBHOOK_VIEWS.items()),
    path("exports/<uuid:job_id>", views.ExportView.as_view()),
    path("exports/<uuid:job_id>/chunks", views.ChunkListView.as_view()),
    path("exports/<uuid:job_id>/events", event_stream.ExportEventsView.as_view()),
    path("exports/<uuid:job_id>/cancel", views.CancelExportView.as_view()),
    path("exports/<uuid:job_id>/replay", views.ReplayExportView.as_view()),
    path("exports/<uuid:job_id>/retry", views.RetryExportView.as_view()),
    path("exports/<uuid:job_id>/link", downloads.LinkView.as_view()),
    path("exports/<uuid:job_id>/download", downloads.DownloadView.as_view()),
    path("exports/<uuid:job_id>/files/<str:key>/<day:effective_date>", downloads.FileView.as_view()),
]
