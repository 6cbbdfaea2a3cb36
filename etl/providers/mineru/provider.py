"""OCR provider for MinerU servers with any of the three protocols."""

import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import urlsplit

import structlog
from django.conf import settings

from etl.core.errors import BadDocument, EtlError, ProviderForbidden, ProviderUnavailable
from etl.core.formats import PARTS, PRINTED, DocumentFormat
from etl.core.stage_context import StageContext
from etl.providers.base import Document, OCRProvider, OCRResult
from etl.providers.local import LocalProvider
from etl.providers.mineru import bounds, jobs, pages
from etl.providers.mineru.client import MinerUClient, MinerUResponse, raise_for_status
from etl.providers.mineru.cloud import CloudV4
from etl.providers.mineru.protocol import Protocol, WrongProtocol
from etl.providers.mineru.v3 import V3
from etl.providers.mineru.v4 import V4, best_tier

log = structlog.get_logger(__name__)

PROTOCOLS: dict[str, type[Protocol]] = {protocol.name: protocol for protocol in (V3, V4, CloudV4)}
# The formats that MinerU accepts.
FORMATS = frozenset(DocumentFormat) - {DocumentFormat.TEXT, DocumentFormat.MARKDOWN}
FORMATS_OF_VERSION_3 = PRINTED | frozenset(PARTS.values())
HOSTED_PATH = "/api/v4"
FIRST_UNSUPPORTED = (4, 1)  # first version with incompatible requests at the same paths


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The detected protocol and tier of the configured server."""

    protocol: type[Protocol]
    tier: str


class MinerUProvider(OCRProvider):
    name: ClassVar[str] = "mineru"
    title: ClassVar[str] = "MinerU"

    def __init__(self) -> None:
        self._server: Server | None = None
        self._reader = LocalProvider()

    @property
    def formats(self) -> frozenset[DocumentFormat]:  # type: ignore[override]
        """The formats that the protocol supports. Submissions are checked without a request to the server."""
        return FORMATS_OF_VERSION_3 if settings.SLUICE.etl_mineru_protocol == "v3" else FORMATS

    def convert(self, document: Document, *, context: StageContext) -> OCRResult:
        began = time.monotonic()
        counted = bounds.check(document, reader=self._reader, context=context)
        try:
            with MinerUClient(context) as client:
                protocol = self._protocol(client)
                done = jobs.run(protocol, document, context=context)
        except EtlError as error:
            if not isinstance(error, BadDocument):
                self._server = None  # detect it again, because it may have been replaced
            raise
        limit: int = settings.SLUICE.etl_max_pages
        markdown, found = pages.assemble(done.result, kind=document.kind, pages=counted, limit=limit, context=context)
        counts = {"pages": len(found), "duration_ms": round((time.monotonic() - began) * 1000)}
        return OCRResult(
            markdown=markdown,
            pages=found,
            provider=self.name,
            provider_task_id=done.job,
            metadata=counts | facts(protocol, done),
        )

    def close(self) -> None:
        self._reader.close()

    def _protocol(self, client: MinerUClient) -> Protocol:
        self._server = self._server or detect(client)
        return self._server.protocol(client, tier=self._server.tier)


def facts(protocol: Protocol, done: jobs.FinishedJob) -> dict[str, Any]:
    read = {"version": done.result.version, "backend": done.result.backend}
    known = {name: fact for name, fact in read.items() if fact}
    return {"version": "", "protocol": protocol.name} | known | done.state.facts


# ---- Detection ------------------------------------------------------------------------------------------------------
def detect(client: MinerUClient) -> Server:
    """Detect the server's protocol and its best tier, unless they are configured. Raises ProviderUnavailable."""
    wanted, tier = settings.SLUICE.etl_mineru_protocol, settings.SLUICE.etl_mineru_tier
    protocol = PROTOCOLS[wanted] if wanted != "auto" else probe(client)
    if protocol is V4 and not tier:
        tier = best_tier(client.get("v1", "tiers"))
    log.info("mineru_found", protocol=protocol.name, tier=tier)
    return Server(protocol=protocol, tier=tier)


def probe(client: MinerUClient) -> type[Protocol]:
    if urlsplit(str(settings.SLUICE.etl_mineru_url)).path.rstrip("/").endswith(HOSTED_PATH):
        return CloudV4
    newer = client.get("v1", "health")
    if newer.text("version"):
        check_version(newer.text("version"))
        return V4
    older = client.get("health")
    if older.text("status") and older.status == HTTPStatus.OK:
        return V3
    raise unrecognized(newer, older)


def unrecognized(*responses: MinerUResponse) -> EtlError:
    """Return the error for an unknown server: it is temporarily unavailable, or not a supported MinerU server."""
    try:
        for response in responses:
            raise_for_status(response)
    except ProviderUnavailable as error:
        return error
    return WrongProtocol("The server at ETL_MINERU_URL is not a supported MinerU server.")


def check_version(version: str) -> None:
    numbers = [int(part[:9]) for part in version.split(".")[:2] if part.isascii() and part.isdigit()]
    if tuple(numbers) >= FIRST_UNSUPPORTED:
        raise ProviderForbidden("The version of the MinerU server is too new. Supported versions are 3.x and 4.0.")
