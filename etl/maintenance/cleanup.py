"""Cleanup of unreferenced documents, old uploads and usage, and folders that killed workers left in ETL_CACHE_DIR."""

from datetime import timedelta

import structlog

from config.platform import storage
from config.platform.cleanup import run_steps
from etl.core import metrics, workspace
from etl.models import Task, Usage
from etl.pipeline import artifacts, quotas
from rules.library import quotas as rule_quotas

log = structlog.get_logger(__name__)

# Unreferenced objects are kept for this long: the row that references them may be about to be committed.
GRACE = timedelta(hours=1)
# The upload's URL expires earlier, and a submission copies the object.
UPLOADS_KEPT = timedelta(hours=24)
BATCH = 500


def sweep() -> list[str]:
    """Run every cleanup step. Return the names of those that failed."""
    failed = run_steps(
        delete_orphans, delete_uploads, forget_expired_uploads, delete_old_usage, abort_uploads, workspace.clear
    )
    metrics.ticked("sweep")
    return failed


def delete_orphans() -> int:
    """Delete unreferenced documents: their submission failed after storing the object."""
    found = old_objects(artifacts.DOCUMENTS, GRACE)
    orphans: list[str] = []
    for start in range(0, len(found), BATCH):
        orphans += unreferenced(found[start : start + BATCH])
    return delete(orphans, "documents_deleted")


def unreferenced(keys: list[str]) -> list[str]:
    """Return those of the documents that no task has."""
    named = set(Task.objects.filter(document_key__in=keys).values_list("document_key", flat=True))
    return [key for key in keys if key not in named]


def delete_uploads() -> int:
    """Delete old uploads."""
    return delete(old_objects(artifacts.UPLOADS, UPLOADS_KEPT), "uploads_deleted")


def forget_expired_uploads() -> int:
    """Delete the rows of upload URLs that have expired."""
    return quotas.forget_expired(kept=UPLOADS_KEPT)


def delete_old_usage() -> int:
    """Delete the quota usage of old days: of documents, and of rules."""
    return Usage.objects.delete_old() + rule_quotas.delete_old()


def abort_uploads() -> int:
    """Abort abandoned multipart uploads of documents."""
    before = storage.now() - GRACE
    uploads = storage.list_uploads("etl/")
    old = [upload for upload in uploads if upload.initiated < before and artifacts.OWN_KEY.fullmatch(upload.key)]
    for upload in old:
        storage.abort_upload(upload.key, upload.upload_id)
    return len(old)


def old_objects(prefix: str, kept: timedelta) -> list[str]:
    before = storage.now() - kept
    found = storage.list_objects(prefix)
    return [item.key for item in found if item.last_modified < before and artifacts.OWN_KEY.fullmatch(item.key)]


def delete(keys: list[str], action: str) -> int:
    storage.delete_many(keys)
    if keys:
        log.info(action, objects=len(keys))
    return len(keys)
