from django.urls import path

from etl.pages import actions, batches, editing, evaluations, listing, page_images, results, submitting, task

urlpatterns = [
    path("app/documents", listing.DocumentListPage.as_view(), name="documents"),
    path("app/documents/submit", submitting.SubmitDocument.as_view(), name="submit-document"),
    path("app/documents/several", actions.BulkTaskAction.as_view(), name="several-documents"),
    path("app/documents/batches", batches.BatchListPage.as_view(), name="batches"),
    path("app/documents/batches/submit", batches.SubmitBatch.as_view(), name="submit-batch"),
    path("app/documents/batches/<int:batch_id>", batches.BatchPage.as_view(), name="batch"),
    path("app/documents/batches/<int:batch_id>/cancel", batches.CancelBatch.as_view(), name="cancel-batch"),
    path("app/documents/batches/<int:batch_id>/retry", batches.RetryBatch.as_view(), name="retry-batch"),
    path("app/documents/batches/<int:batch_id>/results", batches.BatchResultsDownload.as_view(), name="batch-results"),
    path("app/documents/<int:task_id>", task.DocumentPage.as_view(), name="document"),
    path("app/documents/<int:task_id>/cancel", actions.CancelTask.as_view(), name="cancel-document"),
    path("app/documents/<int:task_id>/delete", actions.DeleteTask.as_view(), name="delete-document"),
    path("app/documents/<int:task_id>/edit", editing.EditPage.as_view(), name="edit-document"),
    path("app/documents/<int:task_id>/approve", editing.ApproveResult.as_view(), name="approve-document"),
    path("app/documents/<int:task_id>/unapprove", editing.RemoveApproval.as_view(), name="unapprove-document"),
    path("app/documents/<int:task_id>/retry", actions.RetryTask.as_view(), name="retry-document"),
    path("app/documents/<int:task_id>/sample", evaluations.AddResult.as_view(), name="add-result"),
    path("app/documents/<int:task_id>/pages", results.SheetsFragment.as_view(), name="document-pages"),
    path("app/documents/<int:task_id>/images", page_images.ImagesFragment.as_view(), name="document-images"),
    path("app/documents/<int:task_id>/branch", results.BranchFragment.as_view(), name="document-branch"),
    path("app/documents/<int:task_id>/original", results.OriginalDownload.as_view(), name="document-original"),
    path("app/documents/<int:task_id>/markdown", results.MarkdownDownload.as_view(), name="document-markdown"),
    path("app/documents/<int:task_id>/answer", results.AnswerDownload.as_view(), name="document-answer"),
    path("app/documents/<int:task_id>/json", results.JsonDownload.as_view(), name="document-json"),
]
