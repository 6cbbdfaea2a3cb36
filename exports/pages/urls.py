from django.urls import path

from exports.pages import actions, job, jobs, new, schedules

urlpatterns = [
    path("app/exports", jobs.ExportListPage.as_view(), name="exports"),
    path("app/exports/several", jobs.BulkExportPage.as_view(), name="several-exports"),
    path("app/exports/new", new.NewExportPage.as_view(), name="new-export"),
    path("app/exports/new/preview", new.PreviewFragment.as_view(), name="preview-export"),
    path("app/exports/schedules", schedules.ScheduleListPage.as_view(), name="schedules"),
    path("app/exports/schedules/new", schedules.ScheduleFormPage.as_view(), name="new-schedule"),
    path("app/exports/schedules/preview", schedules.SchedulePreviewFragment.as_view(), name="preview-schedule"),
    path("app/exports/schedules/<uuid:schedule_id>", schedules.SchedulePage.as_view(), name="schedule"),
    path(
        "app/exports/schedules/<uuid:schedule_id>/edit", schedules.ChangeSchedulePage.as_view(), name="change-schedule"
    ),
    path("app/exports/schedules/<uuid:schedule_id>/pause", schedules.PauseSchedule.as_view(), name="pause-schedule"),
    path("app/exports/schedules/<uuid:schedule_id>/resume", schedules.ResumeSchedule.as_view(), name="resume-schedule"),
    path("app/exports/schedules/<uuid:schedule_id>/run", schedules.RunSchedule.as_view(), name="run-schedule"),
    path("app/exports/schedules/<uuid:schedule_id>/delete", schedules.DeleteSchedule.as_view(), name="delete-schedule"),
    path("app/exports/<uuid:job_id>", job.ExportPage.as_view(), name="export"),
    path("app/exports/<uuid:job_id>/now", job.ExportStatusFragment.as_view(), name="export-now"),
    path("app/exports/<uuid:job_id>/chunks", job.ChunkTableFragment.as_view(), name="export-chunks"),
    path("app/exports/<uuid:job_id>/receipt", job.ReceiptFragment.as_view(), name="export-receipt"),
    path("app/exports/<uuid:job_id>/cancel", actions.CancelExport.as_view(), name="cancel-export"),
    path("app/exports/<uuid:job_id>/retry", actions.RetryExport.as_view(), name="retry-export"),
    path("app/exports/<uuid:job_id>/replay", actions.ReplayExport.as_view(), name="replay-export"),
    path("app/exports/<uuid:job_id>/link", actions.CreateLink.as_view(), name="link-export"),
    path("app/exports/<uuid:job_id>/download", actions.DownloadDelivery.as_view(), name="download-export"),
    path("app/exports/<uuid:job_id>/files/<str:key>/<str:day>", actions.DownloadFile.as_view(), name="export-file"),
]
