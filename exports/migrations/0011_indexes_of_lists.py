from django.db import models

from config.platform.db import repeatable

ENDED = ["cancelled", "failed", "success"]
UNSUCCESSFUL = models.Q(status__in=["cancelled", "failed"])
INDEXES = {
    "chunk": [
        models.Index(fields=["error_code", "id"], name="exports_chunk_errors", condition=~models.Q(error_code="")),
    ],
    "delivery": [
        models.Index(
            fields=["webhook", "-created_at", "-id"],
            name="exports_delivery_failed",
            condition=models.Q(status="failed"),
        ),
        models.Index(fields=["-created_at", "-id"], name="exports_delivery_of_all"),
    ],
    "event": [
        models.Index(
            fields=["at"],
            name="exports_event_ends",
            condition=models.Q(kind="status", status__in=ENDED, told_at__isnull=False),
        ),
    ],
    "job": [
        models.Index(fields=["user", "status", "-created_at", "-job_id"], name="exports_jobs_of_status"),
        models.Index(fields=["user", "dataset", "-created_at", "-job_id"], name="exports_jobs_of_dataset"),
        models.Index(
            fields=["status", "-created_at", "-job_id"], name="exports_jobs_not_success", condition=UNSUCCESSFUL
        ),
    ],
    "link": [models.Index(fields=["-created_at"], name="exports_link_newest")],
    "receipt": [models.Index(fields=["-issued_at"], name="exports_receipt_newest")],
    "usage": [models.Index(fields=["-day", "user"], name="exports_usage_newest")],
}


class Migration(repeatable.Migration):
    atomic = False  # indexes are created concurrently

    dependencies = [("exports", "0010_watermark")]

    operations = [
        repeatable.AddIndexConcurrently(model_name=model, index=index)
        for model, indexes in INDEXES.items()
        for index in indexes
    ]
