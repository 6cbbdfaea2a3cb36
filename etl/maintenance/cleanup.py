"""Cleanup of unreferenced documents, old uploads and usage, and folders that killed workers left in ETL_CACHE_DIR."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice

import structlog
from django.db.models.functions import Now

from config.platform import storage
from config.platform.cleanup import run_steps
from config.platform.db import identity
from etl.core import metrics, workspace
from etl.core.states import Status
from etl.models import RuleTokens, Task, Upload, Usage
from etl.pipeline import artifacts, deletion, quotas
from rules.models import RuleUsage

log = structlog.get_logger(__name__)

# Unreferenced objects are kept for this long, because the transaction that creates their row may not be committed yet.
GRACE = timedelta(hours=1)
# Longer than an upload URL is valid. A submission copies the object.
UPLOADS_KEPT = timedelta(hours=24)
# A later request creates the image of a page again.
IMAGES_KEPT = timedelta(days=7)
# Retried tasks are checked for superseded artifacts for this long after their end, in case a sweep fails.
SEARCH_PERIOD = timedelta(days=2)
BATCH = 500


def sweep() -> list[str]:
    """Run every cleanup step. Return the names of those that failed."""
    failed = run_steps(
        delete_orphans,
        delete_uploads,
        forget_uploads,
        delete_superseded,
        delete_images,
        deletion.delete_expired,
        deletion.finish_deletions,
        delete_old_usage,
        abort_uploads,
        workspace.clear,
    )
    metrics.TICKS.labels("sweep").inc()
    return failed


def delete_orphans() -> int:
    """Delete unreferenced documents, whose submission failed after the object was stored."""
    found = old_objects(artifacts.DOCUMENTS, GRACE)  # may be millions: not in one list
    orphans: list[str] = []
    while keys := list(islice(found, BATCH)):
        orphans += filter(is_own, unreferenced(keys))
    return delete(orphans, "documents_deleted")


def unreferenced(keys: list[str]) -> list[str]:
    """Return the keys of documents without a task."""
    referenced = set(Task.objects.filter(document_key__in=keys).values_list("document_key", flat=True))
    return [key for key in keys if key not in referenced]


def is_own(key: str) -> bool:
    """Return whether this service stored the document. Another service with a separate database can share the bucket.

    Documents of earlier releases have no mark, and are never deleted here.
    """
    head = storage.head(key)
    return head is not None and identity.marker().items() <= head.metadata.items()


def delete_uploads() -> int:
    """Delete old uploads."""
    return delete(list(old_objects(artifacts.UPLOADS, UPLOADS_KEPT)), "uploads_deleted")


def delete_images() -> int:
    """Delete old images of pages."""
    return delete(list(old_objects(artifacts.IMAGES, IMAGES_KEPT)), "images_deleted")


def forget_uploads() -> int:
    """Delete the rows of expired upload URLs without an object: nothing was uploaded, or the upload was deleted.

    Other rows still count toward the user's quota. The grace period is for uploads that started before the URL
    expired.
    """
    expired = list(quotas.expired_uploads(kept=GRACE).values_list("file_key", flat=True))
    if not expired:
        return 0
    stored = {item.key for item in storage.list_objects(artifacts.UPLOADS)}
    gone = [key for key in expired if key not in stored]
    return Upload.objects.filter(file_key__in=gone).delete()[0]


def delete_superseded() -> int:
    """Delete the artifacts of earlier runs of tasks whose retry has completed. No row references them.

    Until a retry completes, the previous result is shown.
    """
    retried = Task.objects.filter(
        status=Status.COMPLETED, run__gt=1, updated_at__range=(Now() - GRACE - SEARCH_PERIOD, Now() - GRACE)
    )
    deleted = 0
    for task in retried.without_results().iterator(chunk_size=BATCH):
        if task.run == task.first_run:
            continue
        found = storage.list_objects(artifacts.folder(task))
        deleted += delete([item.key for item in found if artifacts.is_superseded(item.key, task)], "artifacts_deleted")
    return deleted


def delete_old_usage() -> int:
    """Delete the quota usage of old days, for documents and for rules."""
    return Usage.objects.delete_old() + RuleTokens.objects.delete_old() + RuleUsage.objects.delete_old()


def abort_uploads() -> int:
    """Abort abandoned multipart uploads of documents."""
    before = storage.now() - GRACE
    uploads = storage.list_uploads("etl/")
    old = [upload for upload in uploads if upload.initiated < before and artifacts.OWN_KEY.fullmatch(upload.key)]
    for upload in old:
        storage.abort_upload(upload.key, upload.upload_id)
    return len(old)


def old_objects(prefix: str, kept: timedelta) -> Iterator[str]:
    before = storage.now() - kept
    for item in storage.list_objects(prefix):
        if item.last_modified < before and artifacts.OWN_KEY.fullmatch(item.key):
            yield item.key


def delete(keys: list[str], action: str) -> int:
    storage.delete_many(keys)
    if keys:
        log.info(action, objects=len(keys))
    return len(keys)
