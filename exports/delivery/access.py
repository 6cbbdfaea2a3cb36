"""Access of a job's owner to the job's dataset and keys.

It may be removed after the job was accepted. Then the job continues, but its owner cannot create links, download files,
or retry it.
"""

from collections.abc import Callable
from uuid import UUID

from config.platform.http.problems import Problem
from exports.models import Chunk, Dataset, Job


class AccessRemoved(Problem):
    status = 403
    code = "access_removed"
    detail = (
        "The owner of this export no longer has access to its dataset, or to some of its keys. Ask staff for a grant."
    )


def require(job: Job) -> None:
    """Raise AccessRemoved unless the owner of a job may export all its keys."""
    if not has_access(job.pk, job.user_id, job.dataset_id):
        raise AccessRemoved


def require_key(job: Job, key: str) -> None:
    """Raise AccessRemoved unless the owner of a job may export this key."""
    dataset = granted(job.user_id, job.dataset_id)
    if dataset is None or not dataset.grant_check()(key):
        raise AccessRemoved


def may_download(job_id: UUID) -> bool:
    """Return whether the owner of a job may export all its keys."""
    known = Job.objects.filter(pk=job_id).values_list("user_id", "dataset_id").first()
    return known is not None and has_access(job_id, *known)


def has_access(job_id: UUID, user_id: int, dataset_id: int) -> bool:
    dataset = granted(user_id, dataset_id)
    if dataset is None:
        return False
    if dataset.granted_patterns is None:
        return True
    keys = Chunk.objects.filter(job=job_id).order_by().values_list("key", flat=True).distinct()
    return all(map(dataset.grant_check(), keys))


def message_check(job: Job, user_id: int | None) -> Callable[[str], bool]:
    """Return a predicate of a chunk's key: whether the user may see the source's error message.

    Owners may if the dataset shows errors. Staff can only see the message in the admin, which records the access.
    """
    dataset = granted(job.user_id, job.dataset_id) if job.user_id == user_id else None
    return dataset.grant_check() if dataset and dataset.show_errors else lambda _key: False


def granted(user_id: int, dataset_id: int) -> Dataset | None:
    return Dataset.objects.granted_to(user_id).filter(pk=dataset_id).first()
