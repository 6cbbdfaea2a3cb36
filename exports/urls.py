from django.urls import path, register_converter

from exports import views
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
    path("exports/<uuid:job_id>", views.Export.as_view()),
    path("exports/<uuid:job_id>/chunks", views.Chunks.as_view()),
    path("exports/<uuid:job_id>/retry", views.Retry.as_view()),
    path("exports/<uuid:job_id>/link", views.FreshLink.as_view()),
    path("exports/<uuid:job_id>/download", views.Download.as_view()),
    path("exports/<uuid:job_id>/files/<str:key>/<day:effective_date>", views.File.as_view()),
]
