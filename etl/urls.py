from django.urls import path

from etl.api import answer, batch_results, batches, event_stream, layout, markdown, results, rule_trial, usage, views

urlpatterns = [
    path("api/v1/etl/submit", views.SubmitView.as_view()),
    path("api/v1/etl/uploads", views.UploadView.as_view()),
    path("api/v1/etl/tasks", views.TaskListView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>", views.TaskView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/markdown", markdown.MarkdownView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/result", results.ResultView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/approve", results.ApprovalView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/history", results.HistoryView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/answer", answer.AnswerView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/layout", layout.LayoutView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/pages/<int:page>/image", layout.PageImageView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/events", event_stream.TaskEventsView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/cancel", views.CancelTaskView.as_view()),
    path("api/v1/etl/tasks/<int:task_id>/retry", views.RetryTaskView.as_view()),
    path("api/v1/etl/batches", batches.BatchListView.as_view()),
    path("api/v1/etl/batches/<int:batch_id>", batches.BatchView.as_view()),
    path("api/v1/etl/batches/<int:batch_id>/cancel", batches.CancelBatchView.as_view()),
    path("api/v1/etl/batches/<int:batch_id>/retry", batches.RetryBatchView.as_view()),
    path("api/v1/etl/batches/<int:batch_id>/results", batch_results.BatchResultsView.as_view()),
    path("api/v1/etl/limits", usage.LimitsView.as_view()),
    path("api/v1/etl/usage", usage.UsageView.as_view()),
    path("api/v1/etl/rules/<int:rule_id>/test", rule_trial.RuleTrialView.as_view()),
]
