from django.urls import path

from etl.api import event_stream, markdown, rule_trial, views

urlpatterns = [
    path("api/v1/etl/submit", views.Submit.as_view()),
    path("api/v1/etl/uploads", views.Uploads.as_view()),
    path("api/v1/etl/tasks", views.Tasks.as_view()),
    path("api/v1/etl/tasks/<int:task_id>", views.OneTask.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/markdown", markdown.Markdown.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/events", event_stream.Events.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/cancel", views.Cancel.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/retry", views.Retry.as_view()),
    path("api/v1/etl/rules/<int:rule_id>/test", rule_trial.Trial.as_view()),
]
