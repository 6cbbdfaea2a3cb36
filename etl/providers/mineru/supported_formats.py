"""What kinds of document MinerU takes."""

from etl.core.formats import Kind

IMAGES = frozenset({Kind.PNG, Kind.JPEG, Kind.TIFF, Kind.WEBP})
OF_3 = IMAGES | {Kind.PDF, Kind.DOCX, Kind.PPTX, Kind.XLSX}
ALL = OF_3 | {Kind.DOC, Kind.PPT, Kind.XLS, Kind.RTF, Kind.ODT, Kind.ODP, Kind.ODS, Kind.EPUB, Kind.HTML}
