"""What can go wrong with a document's task. Each error knows its code, and whether another attempt can help.

Clients and logs see the code and the sentences below, never a provider's or a model's own message: those may quote the
document. The codes are the public contract's.
"""

from typing import Any

# Seconds until another attempt where a person has to do something first; ETL_RETRY_BACKOFF_MAX_SECONDS bounds them.
OPERATOR_RETRY_SECONDS = 3600.0


class EtlError(Exception):
    """The task failed."""

    code = "ocr_failed"
    # Whether the stage itself tries again, up to its maximum of attempts.
    transient = False
    # Whether the same may well succeed when a person retries it.
    retryable = False

    def __init__(self, detail: str = "", *, retry_after: float | None = None) -> None:
        """`retry_after`: the seconds that a peer asked us to wait."""
        self.detail = detail or " ".join((self.__doc__ or "").split())
        self.retry_after = retry_after
        super().__init__(self.detail)


# ---- The document ---------------------------------------------------------------------------------------------------
class BadDocument(EtlError):
    """The document cannot be read. Another attempt would end the same way."""

    code = "file_corrupt"


class UnsupportedFormat(BadDocument):
    """The OCR provider does not take this kind of file."""

    code = "unsupported_format"


class FileTooLarge(BadDocument):
    """The file is larger than allowed, or unpacks to more than allowed."""

    code = "file_too_large"


class FileEncrypted(BadDocument):
    """The file is encrypted. Remove its password and submit it again."""

    code = "file_encrypted"


class FileCorrupt(BadDocument):
    """The file is damaged, or not what it says it is."""

    code = "file_corrupt"


class TooManyPages(BadDocument):
    """The document has more pages than allowed."""

    code = "too_many_pages"


class TooManyPixels(BadDocument):
    """A page or image has more pixels than allowed."""

    code = "too_many_pixels"


class DocumentMissing(BadDocument):
    """The stored document is gone. Submit it again."""

    code = "artifact_missing"


class EmptyDocument(BadDocument):
    """No text was found in the document."""

    code = "empty_document"


# ---- OCR ------------------------------------------------------------------------------------------------------------
class OcrFailed(EtlError):
    """The OCR provider failed on this document."""

    code = "ocr_failed"
    transient = True
    retryable = True


class OcrRefused(OcrFailed):
    """The OCR provider will not do this document, however often it is asked."""

    transient = False
    retryable = False


class OcrTimeout(EtlError):
    """OCR took longer than a stage may."""

    code = "ocr_timeout"
    transient = True
    retryable = True


class ProviderUnavailable(EtlError):
    """The OCR provider could not be reached, or is too busy."""

    code = "provider_unavailable"
    transient = True
    retryable = True


class ProviderForbidden(ProviderUnavailable):
    """The OCR provider does not accept our credentials, or our quota there is used up."""

    transient = False


# ---- Post-processing ------------------------------------------------------------------------------------------------
class LlmUnavailable(EtlError):
    """The language model could not be reached, is too busy, or did not answer in time."""

    code = "llm_unavailable"
    transient = True
    retryable = True


class LlmForbidden(LlmUnavailable):
    """No language model is set up, or its server does not accept our credentials or requests."""

    transient = False
    retryable = False


class LlmRefused(EtlError):
    """The language model declined to answer, or a content filter withheld the answer."""

    code = "llm_refused"


class LlmTruncated(EtlError):
    """The language model's answer was cut off. Part of an answer is never taken for the whole."""

    code = "llm_truncated"


class LlmInvalidResponse(EtlError):
    """The language model's server answered without an answer in it."""

    code = "llm_invalid_response"
    transient = True
    retryable = True


class SchemaInvalid(EtlError):
    """The language model's answer does not fit the rule's schema, also after it was told why."""

    code = "schema_validation"


class DocumentTooLong(EtlError):
    """The document has more pieces than one task may send to the language model."""

    code = "document_too_long"


# ---- The stage ------------------------------------------------------------------------------------------------------
class StageTimeout(EtlError):
    """Post-processing took longer than a stage may."""

    code = "timeout"
    transient = True
    retryable = True


class ArtifactMissing(EtlError):
    """The stored result of OCR is gone. Retry from OCR."""

    code = "artifact_missing"


class StageLost(EtlError):
    """Workers died or stalled each time they worked on this."""

    transient = True
    retryable = True

    def __init__(self, detail: str = "", *, code: str = "ocr_failed", retry_after: float | None = None) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.code = code


class StorageUnavailable(StageLost):
    """The object storage could not be reached, or refused us."""


class DatabaseUnavailable(StageLost):
    """The database could not be reached."""


class UnexpectedError(StageLost):
    """Something went wrong that nobody thought of. The staff find it in the log."""


class WorkerMisconfigured(StageLost):
    """Something on the worker's machine is not as it has to be. It says nothing about the document."""

    def __init__(
        self, detail: str = "", *, code: str = "ocr_failed", retry_after: float | None = OPERATOR_RETRY_SECONDS
    ) -> None:
        super().__init__(detail, code=code, retry_after=retry_after)


class WorkspaceFull(WorkerMisconfigured):
    """The worker has no folder for the document, or no room in it."""


class EngineMissing(WorkerMisconfigured):
    """The local OCR engine could not be started."""


# ---- Not outcomes ---------------------------------------------------------------------------------------------------
class Fenced(Exception):
    """The stage is no longer ours: another worker has it, or the task has ended. Nothing may be written."""


class OutOfTime(Exception):
    """The stage ran for as long as it may. The stage translates it into its own timeout."""


def codes(root: type[EtlError] = EtlError) -> set[str]:
    """Return every code that a task may fail with."""
    return {root.code}.union(*map(codes, root.__subclasses__()))


def explain(error: EtlError, *, stage: str) -> dict[str, Any]:
    """Return an error as clients see it and the task keeps it."""
    return {"code": error.code, "stage": stage, "detail": error.detail, "retryable": error.retryable}
