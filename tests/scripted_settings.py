"""Settings of workers in tests, with the post-processor of `tests/scripted_stages.py` and with shorter timeouts."""

from config.settings import *  # noqa: F403
from config.settings import SLUICE

ETL_POSTPROCESSORS = {"skip": "etl.postprocessors.skip.Skip", "llm": "tests.scripted_stages.Processor"}
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 2
# The hard limit is 20 s after the soft limit, so that a task has time to record that it stops.
CELERY_TASK_ANNOTATIONS = {
    name: {"soft_time_limit": SLUICE.etl_task_timeout + 1, "time_limit": SLUICE.etl_task_timeout + 21}
    for name in ("etl.ocr", "etl.postprocess")
}
