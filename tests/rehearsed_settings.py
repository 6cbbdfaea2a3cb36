"""The settings of workers in tests: with the rehearsed processor in the place of the one that asks a model, and less
patience with what does not end by itself."""

from config.settings import *  # noqa: F403
from config.settings import SLUICE

ETL_POSTPROCESSORS = {"skip": "etl.postprocessors.skip.Skip", "llm": "tests.rehearsal.Processor"}
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 2
CELERY_TASK_ANNOTATIONS = {
    name: {"soft_time_limit": SLUICE.etl_task_timeout + 1, "time_limit": SLUICE.etl_task_timeout + 3}
    for name in ("etl.ocr", "etl.postprocess")
}
