"""MinerU over HTTP: self-hosted 3.x and 4.0, and the hosted service's API v4."""

from etl.providers.mineru.provider import MinerUProvider

__all__ = ["MinerUProvider"]
