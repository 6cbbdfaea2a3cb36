"""URLs of rule pages that need documents or post-processing. They are here because `rules` must not import either."""

from django.urls import path

from etl.pages import trial

urlpatterns = [
    path("app/rules/try", trial.RuleTrialPage.as_view(), name="try-rule"),
    path("app/rules/documents", trial.RuleDocumentsFragment.as_view(), name="rule-documents"),
    path("app/rules/markdown", trial.SampleMarkdownFragment.as_view(), name="rule-markdown"),
]
