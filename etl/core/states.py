"""The states of a task, and their order. `docs/lifecycle.md` has the transitions."""

from django.db.models import TextChoices


class Status(TextChoices):
    PENDING = "pending"
    MINERU_PARSING = "mineru_parsing"  # in OCR, with any provider; the API fixes the name
    LLM_PROCESSING = "llm_processing"  # in post-processing, with or without a model
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Phase(TextChoices):
    OCR = "ocr"
    POSTPROCESS = "postprocess"


ENDED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
# Statuses that exist only in Redis, never in a row.
PASSING = frozenset({Status.MINERU_PARSING, Status.LLM_PROCESSING})
