"""States of tasks and batches, and the stages of a task. `docs/lifecycle.md` has the transitions."""

from django.db.models import TextChoices


class Status(TextChoices):
    PENDING = "pending"
    MINERU_PARSING = "mineru_parsing"  # the stage OCR, with any provider; the name is part of the public API
    LLM_PROCESSING = "llm_processing"  # the stage post-processing, with or without a model
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Stage(TextChoices):
    OCR = "ocr"
    POSTPROCESS = "postprocess"


class BatchStatus(TextChoices):
    """The states of a batch. A batch is running while any of its documents is open."""

    RUNNING = "running"
    COMPLETED = "completed"
    COMPLETED_WITH_ERRORS = "completed_with_errors"
    CANCELLED = "cancelled"


ENDED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
PROCESSED = [Status.COMPLETED, Status.FAILED]  # the final states that workers set
