"""Settings of workers in tests: the scripted post-processor in place of the language model, and shorter timeouts."""

from config.settings import *  # noqa: F403
from config.settings import SLUICE

ETL_POSTPROCESSORS = {"skip": "etl.postprocessors.skip.Skip", "llm": "tests.rehearsal.Processor"}
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 2
# The hard limit keeps its distance from the soft one: a task that is asked to stop needs time to record that.
CELERY_TASK_ANNOTATIONS = {
    name: {"soft_time_limit": SLUICE.etl_task_timeout + 1, "time_limit": SLUICE.etl_task_timeout + 21}
    for name in ("etl.ocr", "etl.postprocess")
}
