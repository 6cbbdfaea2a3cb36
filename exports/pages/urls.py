from django.urls import path

from exports.pages import actions, job, jobs, new

urlpatterns = [
    path("app/exports", jobs.Jobs.as_view(), name="exports"),
    path("app/exports/several", jobs.Several.as_view(), name="several-exports"),
    path("app/exports/new", new.NewExport.as_view(), name="new-export"),
    path("app/exports/new/preview", new.Preview.as_view(), name="preview-export"),
    path("app/exports/<uuid:job_id>", job.OneExport.as_view(), name="export"),
    path("app/exports/<uuid:job_id>/now", job.Now.as_view(), name="export-now"),
    path("app/exports/<uuid:job_id>/chunks", job.Chunks.as_view(), name="export-chunks"),
    path("app/exports/<uuid:job_id>/receipt", job.Receipt.as_view(), name="export-receipt"),
    path("app/exports/<uuid:job_id>/cancel", actions.Cancel.as_view(), name="cancel-export"),
    path("app/exports/<uuid:job_id>/retry", actions.Retry.as_view(), name="retry-export"),
    path("app/exports/<uuid:job_id>/replay", actions.Replay.as_view(), name="replay-export"),
    path("app/exports/<uuid:job_id>/link", actions.FreshLink.as_view(), name="link-export"),
    path("app/exports/<uuid:job_id>/download", actions.Download.as_view(), name="download-export"),
    path("app/exports/<uuid:job_id>/files/<str:key>/<str:day>", actions.File.as_view(), name="export-file"),
]
