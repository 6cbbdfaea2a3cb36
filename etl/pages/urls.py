from django.urls import path

from etl.pages import actions, listing, results, submitting, task

urlpatterns = [
    path("app/documents", listing.Documents.as_view(), name="documents"),
    path("app/documents/submit", submitting.Submit.as_view(), name="submit-document"),
    path("app/documents/several", actions.Several.as_view(), name="several-documents"),
    path("app/documents/<int:task_id>", task.OneDocument.as_view(), name="document"),
    path("app/documents/<int:task_id>/cancel", actions.Cancel.as_view(), name="cancel-document"),
    path("app/documents/<int:task_id>/retry", actions.Retry.as_view(), name="retry-document"),
    path("app/documents/<int:task_id>/pages", results.Sheets.as_view(), name="document-pages"),
    path("app/documents/<int:task_id>/branch", results.Branch.as_view(), name="document-branch"),
    path("app/documents/<int:task_id>/original", results.Original.as_view(), name="document-original"),
    path("app/documents/<int:task_id>/markdown", results.MarkdownFile.as_view(), name="document-markdown"),
    path("app/documents/<int:task_id>/json", results.JsonFile.as_view(), name="document-json"),
]
