"""OCR provider for MinerU over HTTP: self-hosted versions 3.x and 4.0, and API v4 of the hosted service."""

from etl.providers.mineru.provider import MinerUProvider

__all__ = ["MinerUProvider"]
