"""Document formats that MinerU accepts."""

from etl.core.formats import DocumentFormat

IMAGES = frozenset({DocumentFormat.PNG, DocumentFormat.JPEG, DocumentFormat.TIFF, DocumentFormat.WEBP})
OF_3 = IMAGES | {DocumentFormat.PDF, DocumentFormat.DOCX, DocumentFormat.PPTX, DocumentFormat.XLSX}
ALL = OF_3 | {
    DocumentFormat.DOC,
    DocumentFormat.PPT,
    DocumentFormat.XLS,
    DocumentFormat.RTF,
    DocumentFormat.ODT,
    DocumentFormat.ODP,
    DocumentFormat.ODS,
    DocumentFormat.EPUB,
    DocumentFormat.HTML,
}
