"""The states of a document's task, and their order. `docs/lifecycle.md` draws the arrows."""

from django.db.models import TextChoices


class Status(TextChoices):
    PENDING = "pending"
    MINERU_PARSING = "mineru_parsing"  # in OCR, by whichever provider: the contract's word
    LLM_PROCESSING = "llm_processing"  # in post-processing, with or without a model
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Phase(TextChoices):
    OCR = "ocr"
    POSTPROCESS = "postprocess"


ENDED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
# Statuses that live in Redis alone; no row has one of them.
PASSING = frozenset({Status.MINERU_PARSING, Status.LLM_PROCESSING})
