"""The pages of rules that need documents or post-processing, which `rules` does not know of."""

from django.urls import path

from etl.pages import trial

urlpatterns = [
    path("app/rules/try", trial.Try.as_view(), name="try-rule"),
    path("app/rules/documents", trial.Documents.as_view(), name="rule-documents"),
    path("app/rules/markdown", trial.Sample.as_view(), name="rule-markdown"),
]
