"""URLs of rule pages that need documents or post-processing, which the app `rules` must not import."""

from django.urls import path

from etl.pages import evaluations, trial

urlpatterns = [
    path("app/rules/try", trial.RuleTrialPage.as_view(), name="try-rule"),
    path("app/rules/suggest", trial.SuggestionPage.as_view(), name="suggest-schema"),
    path("app/rules/documents", trial.RuleDocumentsFragment.as_view(), name="rule-documents"),
    path("app/rules/markdown", trial.SampleMarkdownFragment.as_view(), name="rule-markdown"),
    path("app/rules/<int:rule_id>/evaluations", evaluations.EvaluationsPage.as_view(), name="rule-evaluations"),
    path("app/rules/<int:rule_id>/evaluations/start", evaluations.StartEvaluation.as_view(), name="evaluate-rule"),
    path(
        "app/rules/<int:rule_id>/evaluations/<int:number>/cancel",
        evaluations.CancelEvaluation.as_view(),
        name="cancel-evaluation",
    ),
    path("app/rules/<int:rule_id>/accuracies", evaluations.AccuraciesFragment.as_view(), name="rule-accuracies"),
    path("app/rules/<int:rule_id>/samples", evaluations.AddSample.as_view(), name="add-sample"),
    path(
        "app/rules/<int:rule_id>/samples/<int:sample_id>/delete",
        evaluations.DeleteSample.as_view(),
        name="delete-sample",
    ),
]
