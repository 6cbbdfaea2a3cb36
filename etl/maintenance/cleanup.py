"""The janitors: of object storage, documents that no task names and uploads that nobody submitted; of ETL_CACHE_DIR,
what killed workers left."""

from datetime import timedelta

import structlog

from config.platform import storage
from config.platform.cleanup import run_steps
from etl.core import metrics, workspace
from etl.models import Task
from etl.pipeline import artifacts

log = structlog.get_logger(__name__)

# Objects that nothing names are left alone for so long: what names them may be about to be written.
GRACE = timedelta(hours=1)
# An upload's URL lives for less, and what was submitted from it is a copy.
UPLOADS_KEPT = timedelta(hours=24)
BATCH = 500


def sweep() -> list[str]:
    """Run every cleanup step. Return the names of those that failed."""
    failed = run_steps(delete_orphans, delete_uploads, abort_uploads, workspace.clear)
    metrics.ticked("sweep")
    return failed


def delete_orphans() -> int:
    """Delete documents that no row names: the submission died between the object and the row, or was refused."""
    found = old_objects(artifacts.DOCUMENTS, GRACE)
    orphans: list[str] = []
    for start in range(0, len(found), BATCH):
        batch = found[start : start + BATCH]
        named = set(Task.objects.filter(document_key__in=batch).values_list("document_key", flat=True))
        orphans += [key for key in batch if key not in named]
    return delete(orphans, "documents_deleted")


def delete_uploads() -> int:
    """Delete uploads whose time is over."""
    return delete(old_objects(artifacts.UPLOADS, UPLOADS_KEPT), "uploads_deleted")


def abort_uploads() -> int:
    """Abort multipart uploads of documents that nobody goes on with."""
    before = storage.now() - GRACE
    old = [upload for upload in storage.list_uploads("etl/") if upload.initiated < before]
    for upload in old:
        storage.abort_upload(upload.key, upload.upload_id)
    return len(old)


def old_objects(prefix: str, kept: timedelta) -> list[str]:
    before = storage.now() - kept
    return [item.key for item in storage.list_objects(prefix) if item.last_modified < before]


def delete(keys: list[str], action: str) -> int:
    storage.delete_many(keys)
    if keys:
        log.info(action, objects=len(keys))
    return len(keys)
