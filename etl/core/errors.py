"""Errors of document tasks. Each has a code, and states whether another attempt can succeed.

Responses and logs contain only the codes and the texts below, never a message of a provider or a model, because that
may quote the document. The codes are part of the public API.
"""

from typing import Any, Self


class EtlError(Exception):
    code = "ocr_failed"
    # The stage is retried automatically, up to the maximum number of attempts.
    transient = False
    # A manual retry may succeed.
    retryable = False
    # The cause is the installation, its settings, or its budgets, rather than the document or the rule.
    is_operational = False
    detail = "The task failed."
    # Seconds until the next attempt: the peer's Retry-After, or a fixed delay. None for exponential backoff.
    retry_after: float | None = None
    # The unusable response of the model. Stored for the task's owner, and never logged.
    answer: str = ""

    def __init__(self, detail: str = "", *, code: str = "", retry_after: float | None = None) -> None:
        self.detail = detail or self.detail
        self.code = code or self.code
        self.retry_after = self.retry_after if retry_after is None else retry_after
        super().__init__(self.detail)


class TemporaryError(EtlError):
    transient = True
    retryable = True
    is_operational = True


# ---- The document ---------------------------------------------------------------------------------------------------
class BadDocument(EtlError):
    code = "file_corrupt"
    detail = "The document cannot be read."
    # A template of the detail with the number found and the limit, for errors about a limit.
    counted = ""
    found: int | None = None
    limit: int | None = None

    @classmethod
    def of(cls, found: int, limit: int) -> Self:
        """Return the error with the number found and the limit."""
        error = cls(cls.counted.format(found=found, limit=limit))
        error.found, error.limit = found, limit
        return error


class UnsupportedFormat(BadDocument):
    code = "unsupported_format"
    detail = "The OCR provider does not support this file type."


class FileTooLarge(BadDocument):
    code = "file_too_large"
    detail = "The file exceeds the size limit, before or after decompression."
    counted = "The file has at least {found:,} bytes after decompression; the limit is {limit:,}."


class TooMuchText(FileTooLarge):
    counted = "The document has at least {found:,} bytes of text; the limit is {limit:,}."


class TooManyParts(FileTooLarge):
    counted = "The file has at least {found:,} parts; the limit is {limit:,}."


class TooManyCells(FileTooLarge):
    counted = "The document has at least {found:,} cells; the limit is {limit:,}."


class TooMuchProcessing(FileTooLarge):
    detail = "Reading the file takes more CPU time than allowed."


class TooDeep(FileTooLarge):
    detail = "The content of the file is nested too deeply."


class FileEncrypted(BadDocument):
    code = "file_encrypted"
    detail = "The file is encrypted. Remove its password and submit it again."


class FileCorrupt(BadDocument):
    code = "file_corrupt"
    detail = "The file is damaged, or its content does not match its type."


class TooManyPages(BadDocument):
    code = "too_many_pages"
    detail = "The document exceeds the page limit."
    counted = "The document has {found:,} pages; the limit is {limit:,}."


class TooManyPixels(BadDocument):
    code = "too_many_pixels"
    detail = "A page or image exceeds the pixel limit."
    counted = "A page or image has {found:,} pixels; the limit is {limit:,}."


class DocumentMissing(BadDocument):
    code = "artifact_missing"
    detail = "The stored document no longer exists. Submit it again."


class EmptyDocument(BadDocument):
    code = "empty_document"
    detail = "No text was found in the document."


class IncompleteDocument(BadDocument):
    code = "incomplete_document"
    detail = "The rule requires complete documents, and not all pages could be read reliably."


# ---- OCR ------------------------------------------------------------------------------------------------------------
class OcrFailed(TemporaryError):
    code = "ocr_failed"
    detail = "The OCR provider failed to process this document."


class OcrRefused(OcrFailed):
    transient = False
    retryable = False
    is_operational = False
    detail = "The OCR provider rejected this document. Another attempt cannot help."


class TimeLimitExceeded(TemporaryError):
    """A stage exceeded its time limit."""

    @classmethod
    def after(cls, limit: str) -> Self:
        """Return the error with the exceeded limit in its text, such as `2 min`."""
        return cls(f"{cls.detail.removesuffix('.')}, which is {limit}.")


class OcrTimeout(TimeLimitExceeded):
    code = "ocr_timeout"
    detail = "OCR exceeded its time limit."


class ProviderUnavailable(TemporaryError):
    code = "provider_unavailable"
    detail = "The OCR provider is unreachable or overloaded."


class ProviderForbidden(ProviderUnavailable):
    transient = False
    detail = "The OCR provider rejected our credentials, or our quota there is used up."


# ---- Post-processing ------------------------------------------------------------------------------------------------
class LlmUnavailable(TemporaryError):
    code = "llm_unavailable"
    detail = "The language model is unreachable, overloaded, or too slow to respond."


class LlmForbidden(LlmUnavailable):
    transient = False
    retryable = False
    detail = "No language model is configured, or its server rejected our credentials or requests."


class PagesUnavailable(LlmForbidden):
    is_operational = False
    detail = "The pages of this document cannot be shown to a language model."


class VisionUnsupported(EtlError):
    code = "vision_unsupported"
    # A retry succeeds after the operator has configured another model.
    retryable = True
    is_operational = True
    detail = "The configured language model does not support images, which the rule's strategy needs."


class LlmRefused(EtlError):
    code = "llm_refused"
    detail = "The language model declined to respond, or a content filter withheld its response."


class LlmTruncated(EtlError):
    code = "llm_truncated"
    detail = "The language model's response was cut off. Partial responses are never used."


class LlmInvalidResponse(TemporaryError):
    code = "llm_invalid_response"
    detail = "The language model's server returned an invalid response."


class SchemaInvalid(EtlError):
    code = "schema_validation"
    detail = "The language model's response does not match the rule's schema, even after a corrective retry."


class NoEInvoice(EtlError):
    code = "no_einvoice"
    detail = "The document contains no readable e-invoice, and no language model is configured to read its text."


class NumberUnrepresentable(SchemaInvalid):
    code = "number_unrepresentable"
    detail = "The language model's response has a number that cannot be stored. Allow a string in the rule's schema."


class TokenBudgetExceeded(EtlError):
    code = "token_budget_exceeded"
    # A retry succeeds on the next day.
    retryable = True
    is_operational = True
    detail = "The daily budget of language model tokens is used up."


class DocumentTooLong(EtlError):
    code = "document_too_long"
    detail = "The document has more parts than one task may send to the language model."


# ---- The stage ------------------------------------------------------------------------------------------------------
class StageTimeout(TimeLimitExceeded):
    code = "timeout"
    detail = "Post-processing exceeded its time limit."


class ArtifactMissing(EtlError):
    code = "artifact_missing"
    detail = "The stored OCR result no longer exists. Retry from OCR."


class StageLost(TemporaryError):
    detail = "Workers crashed or stalled at every attempt on this stage."


class StorageUnavailable(StageLost):
    detail = "The object storage is unreachable, or it rejected our request."


class StorageRefused(StorageUnavailable):
    """The storage is unreachable, full, or overloaded, or rejects the credentials.

    Attempts are not counted during EXPORT_STORAGE_PATIENCE_SECONDS.
    """


class DatabaseUnavailable(StageLost):
    detail = "The database is unreachable."


class UnexpectedError(StageLost):
    detail = "Unexpected error. The operator can find it in the worker's log."


class WorkerMisconfigured(StageLost):
    # An operator has to fix the machine first. The delay is at most ETL_RETRY_BACKOFF_MAX_SECONDS.
    retry_after = 3600.0
    detail = "The worker's machine is not set up correctly. The document is not the cause."


class WorkspaceFull(WorkerMisconfigured):
    detail = "The worker cannot create a folder for the document, or its disk is full."


class EngineMissing(WorkerMisconfigured):
    detail = "The local OCR engine could not be started."


class SandboxMissing(WorkerMisconfigured):
    detail = "The worker's system cannot sandbox the process that reads documents, which the operator requires."


# ---- Control flow ---------------------------------------------------------------------------------------------------
class Fenced(Exception):
    """The lease was lost: another worker has the stage, or the task has ended. This worker must not write anything."""


class OutOfTime(Exception):
    """The time limit of a stage was reached. Each stage translates this into its own timeout error."""


def codes(root: type[EtlError] = EtlError) -> set[str]:
    """Return all codes with which a task can fail."""
    return {root.code}.union(*map(codes, root.__subclasses__()))


def explain(error: EtlError, *, stage: str) -> dict[str, Any]:
    """Return an error as the task stores it and the API shows it."""
    return {"code": error.code, "stage": stage, "detail": error.detail, "retryable": error.retryable}
