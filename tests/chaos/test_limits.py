"""A worker without disk space for parts or logs, or without memory. Row 24 of docs/reliability.md."""

import os
import resource
import signal
from pathlib import Path

from config.dev.stack import processes
from exports.models import Chunk, Job
from tests.chaos.site import QUEUES, Site
from tests.chaos.test_storage import outcomes, paths, visible
from tests.chaos.test_workers import TWO_PARTS
from tests.waiting import wait_until

MIB = 1024 * 1024
LOST = ("failed", "EXPORT_WORKER_LOST", 2)


def limit(site: Site, resource_type: int, size: int) -> None:
    """Set a resource limit of the workers' child processes, in bytes. A negative value means no limit."""
    for pid in site.children():
        resource.prlimit(pid, resource_type, (size, resource.prlimit(pid, resource_type)[1]))


def test_a_worker_without_disk_space_reports_it_and_recovers(site: Site) -> None:
    """24: parts after the first 13 GiB of a file (here 8 MiB) are buffered on disk."""
    site.source.behave("LARGE", rows=TWO_PARTS)
    site.start_worker(EXPORT_MAX_ATTEMPTS=2, CHAOS_PARTS_OF_A_SIZE=1)
    site.start_beat()
    site.start_web()
    site.wait_for_workers()
    limit(site, resource.RLIMIT_FSIZE, 10 * MIB)
    job = site.submit("LARGE", "SMALL", delivery="manifest")
    site.settle(job)

    assert outcomes(job) == {"LARGE": LOST, "SMALL": ("done", "", 1)}
    assert Chunk.objects.get(key="LARGE").error_detail == "the worker could not continue: OSError (EFBIG)"
    assert paths(job, "done") == visible()
    assert_recovers(site, job, resource.RLIMIT_FSIZE)


def assert_recovers(site: Site, job: Job, resource_type: int) -> None:
    """Assert that the same workers succeed when they have resources again."""
    before = site.children()
    limit(site, resource_type, resource.RLIM_INFINITY)
    retry_as_user(site, job)
    assert job.status == "success"
    assert site.children() == before, "a worker was restarted"


def test_a_worker_without_memory_reports_it_and_recovers(site: Site) -> None:
    """24: too little for the buffer of a part. Row 1 covers a worker that the OOM killer kills."""
    site.start_worker(EXPORT_MAX_ATTEMPTS=2)
    site.start_beat()
    site.start_web()
    site.wait_for_workers()
    warm = site.submit("WARM")  # so that all modules are imported
    site.settle(warm)
    for pid in site.children():
        resource.prlimit(pid, resource.RLIMIT_AS, (virtual_memory(pid) + 6 * MIB, resource.RLIM_INFINITY))
    job = site.submit("A", "B", delivery="manifest")
    site.settle(job)

    assert outcomes(job) == {"A": LOST, "B": LOST}
    assert visible() == paths(warm, "done")
    assert_recovers(site, job, resource.RLIMIT_AS)


def retry_as_user(site: Site, job: Job) -> None:
    """Retry the failed chunks as a user, and wait for the end."""
    site.allowed.retried.add(str(job.pk))
    response = site.client.post(f"/exports/{job.pk}/retry")
    assert response.status_code == 202, response.text
    site.settle(job)


def virtual_memory(pid: int) -> int:
    """Return a process's address space in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def test_a_worker_that_cannot_log_keeps_working(site: Site) -> None:
    """24: each log line fails with ENOSPC, from start to exit. The worker can still replace child processes."""
    environment = site.environment()
    environment.pop("PYTHONUNBUFFERED", None)  # otherwise, Python has no buffer whose flush can fail
    worker = processes.worker("mute", queues=QUEUES, concurrency=2, root=site.folder, environment=environment)
    worker.log = Path("/dev/full")
    site.source.behave("REFUSED", error=True)
    worker.start()
    site.start_beat()
    site.start_web()
    job, failing = site.submit("A", "B"), site.submit("REFUSED")
    site.workers.append(worker)
    site.settle(job, failing)

    assert (job.status, failing.status) == ("success", "failed")
    for pid in site.children():
        os.kill(pid, signal.SIGKILL)
    after = site.submit("C")
    site.settle(after)
    assert after.status == "success"
    os.kill(worker.pid, signal.SIGTERM)
    wait_until(lambda: not worker.alive)
    assert worker.exit_status == 0
