"""Document formats that MinerU accepts."""

from etl.core.formats import IMAGES, PARTS, DocumentFormat

VERSION_3 = IMAGES | {DocumentFormat.PDF, *PARTS.values()}
ALL = frozenset(DocumentFormat) - {DocumentFormat.TEXT, DocumentFormat.MARKDOWN}
