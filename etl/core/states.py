"""The states of a task, and their order. `docs/lifecycle.md` has the transitions."""

from django.db.models import TextChoices


class Status(TextChoices):
    PENDING = "pending"
    MINERU_PARSING = "mineru_parsing"  # in OCR, with any provider; the API fixes the name
    LLM_PROCESSING = "llm_processing"  # in post-processing, with or without a model
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Stage(TextChoices):
    OCR = "ocr"
    POSTPROCESS = "postprocess"


class BatchStatus(TextChoices):
    """The states of a batch. It is running while any of its documents is open."""

    RUNNING = "running"
    COMPLETED = "completed"
    COMPLETED_WITH_ERRORS = "completed_with_errors"
    CANCELLED = "cancelled"


ENDED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
PROCESSED = [Status.COMPLETED, Status.FAILED]  # the ends that a worker reached
