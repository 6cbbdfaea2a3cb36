from django.urls import path

from etl.api import evaluations, event_stream, layout, markdown, rule_trial, usage, views

urlpatterns = [
    path("api/v1/etl/submit", views.SubmitView.as_view()),
    path("api/v1/etl/uploads", views.UploadView.as_view()),
    path("api/v1/etl/tasks", views.TaskListView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>", views.TaskView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/markdown", markdown.MarkdownView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/layout", layout.LayoutView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/pages/<int:page>/image", layout.PageImageView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/events", event_stream.TaskEventsView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/cancel", views.CancelTaskView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/retry", views.RetryTaskView.as_view()),
    path("api/v1/etl/limits", usage.LimitsView.as_view()),
    path("api/v1/etl/usage", usage.UsageView.as_view()),
    path("api/v1/etl/rules/<int:rule_id>/test", rule_trial.RuleTrialView.as_view()),
    path("api/v1/etl/rules/<int:rule_id>/samples", evaluations.SamplesView.as_view()),
    path("api/v1/etl/rules/<int:rule_id>/samples/<int:sample_id>", evaluations.SampleView.as_view()),
    path("api/v1/etl/rules/<int:rule_id>/evaluations", evaluations.EvaluationsView.as_view()),
    path("api/v1/etl/rules/<int:rule_id>/evaluations/compare", evaluations.CompareEvaluationsView.as_view()),
    path("api/v1/etl/rules/<int:rule_id>/evaluations/<int:number>", evaluations.EvaluationView.as_view()),
    path("api/v1/etl/rules/<int:rule_id>/evaluations/<int:number>/cancel", evaluations.CancelEvaluationView.as_view()),
]
