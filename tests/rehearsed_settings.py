"""The settings of workers in tests: with the rehearsed processor in the place of the one that asks a model, and less
patience with what does not end by itself."""

from config.settings import *  # noqa: F403
from config.settings import SLUICE

ETL_POSTPROCESSORS = {"skip": "etl.postprocessors.skip.Skip", "llm": "tests.rehearsal.Processor"}
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 2
# The hard limit is as far behind the soft one as it always is: who is told to end needs time to write that down.
CELERY_TASK_ANNOTATIONS = {
    name: {"soft_time_limit": SLUICE.etl_task_timeout + 1, "time_limit": SLUICE.etl_task_timeout + 21}
    for name in ("etl.ocr", "etl.postprocess")
}
