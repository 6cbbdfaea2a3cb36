"""The OCR stage: from the stored document to stored Markdown. It reuses an earlier attempt's result.

`engines.reader()` selects the provider.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from django.conf import settings

from config.platform import storage
from config.platform.observability import tracing
from etl.core import workspace
from etl.core.errors import DocumentMissing, EmptyDocument, FileTooLarge
from etl.core.formats import PRINTED, DocumentFormat
from etl.core.stage_context import StageContext
from etl.pipeline import artifacts, duplicates, engines
from etl.pipeline.artifacts import ArtifactOwner, StoredOcr
from etl.postprocessors.einvoices import comparison
from etl.providers.base import Document, EInvoice, OCRResult, without_markers
from etl.runstate import RunState
from rules.library import catalog


def run(state: RunState, context: StageContext) -> StoredOcr:
    """Return the stored OCR result of an earlier attempt, or a new one.

    Raises EtlError, StorageError, Unavailable, and the errors of `context.check()`.
    """
    return artifacts.find_ocr(state) or convert(state, context)


def convert(state: RunState, context: StageContext) -> StoredOcr:
    # Providers store fetched results beside the document, so the disk may become full.
    with (
        local_copy(state, context, may_be_empty=DocumentFormat(state.kind) in PRINTED) as document,
        workspace.translate_errors(*workspace.FULL),
        tracing.span("convert", kind=str(state.kind), bytes=state.size),
    ):
        duplicates.record_digest(state, document.sha256)
        einvoice = find_einvoice(document, context)
        reader = engines.reader(document.kind)
        result = reader.convert(replace(document, einvoice=einvoice), context=context)
    refuse_empty(state, result)
    if einvoice:
        result = with_einvoice(result, einvoice, kind=document.kind, context=context)
    return artifacts.store_ocr(
        state,
        result,
        sha256=document.sha256,
        warnings=[warning.as_dict() for warning in context.warnings],
        attempts=state.attempts[state.phase],
        check=context.check,
    )


# ---- E-invoices -----------------------------------------------------------------------------------------------------
def find_einvoice(document: Document, context: StageContext) -> EInvoice | None:
    """Return the e-invoice in the document, if any, whichever provider reads its pages.

    Workers without the local provider's packages, such as those that only use MinerU, do not search for one. Raises the
    errors of `LocalProvider.find_einvoice`.
    """
    return engines.local().find_einvoice(document, context=context) if engines.reads_einvoices() else None


def with_einvoice(result: OCRResult, einvoice: EInvoice, *, kind: DocumentFormat, context: StageContext) -> OCRResult:
    """Add the e-invoice to a result, and warn if it breaks rules or differs from the pages."""
    for error in einvoice.errors:
        if error["code"].startswith("BR-"):
            context.warn("einvoice_rule", f"{error['code']}: {error['detail']}")
    result = replace(result, einvoice=einvoice.data, metadata=result.metadata | {"einvoice": einvoice.summary()})
    if kind != DocumentFormat.XML:
        comparison.warn_of_differences(einvoice.data, result, context=context)
    return result


# ---- The document ---------------------------------------------------------------------------------------------------
def refuse_empty(state: RunState, result: OCRResult) -> None:
    """Raise EmptyDocument if there is no text, unless a model will read the page images."""
    if without_markers(result.markdown).strip():
        return
    rule = catalog.content(rule_id=state.rule_id, version=state.rule_version)
    if not (DocumentFormat(state.kind) in PRINTED and engines.reads_images(rule)):
        raise EmptyDocument


@contextmanager
def local_copy(state: ArtifactOwner, context: StageContext, *, may_be_empty: bool = False) -> Iterator[Document]:
    """Download the document into a temporary folder, under a name that the client did not choose."""
    with workspace.folder() as folder:
        path = folder / f"{state.task_id}.{DocumentFormat(state.kind)}"
        with workspace.translate_errors():
            sha256 = fetch(state, path, context)
        yield Document(
            path=path,
            kind=DocumentFormat(state.kind),
            size=state.size,
            sha256=sha256,
            name=path.name,
            url=partial(url_of, state, path.name),
            may_be_empty=may_be_empty,
        )


def fetch(state: ArtifactOwner, path: Path, context: StageContext) -> str:
    """Write the document to a file, and return its SHA-256 in hex.

    Raises DocumentMissing, FileTooLarge if it has grown, StorageError, and the errors of `context.check()`.
    """
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("xb") as file:
            for block in storage.read(state.document_key):
                context.check()
                size += len(block)
                if size > state.size:
                    raise FileTooLarge
                digest.update(block)
                file.write(block)
    except storage.Missing:
        raise DocumentMissing from None
    return digest.hexdigest()


def url_of(state: ArtifactOwner, name: str) -> str:
    """Return a download URL that remains valid longer than a stage may take."""
    return storage.presign_download(
        state.document_key,
        seconds=settings.SLUICE.etl_task_timeout + 600,
        content_type=DocumentFormat(state.kind).media_type,
        file_name=name,
    )
