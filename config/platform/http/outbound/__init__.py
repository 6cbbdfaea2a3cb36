"""Outbound HTTP with limits of time and size.

All requests to other servers use `Transport`: webhooks, MinerU, and language models. Only the clients of the object
storage and the OpenID provider, and the exporters of traces and error reports, do not.
"""

from config.platform.http.outbound.client import Client, ResponseTooLarge, read_body, read_chunks
from config.platform.http.outbound.connections import Transport, environment_proxy
from config.platform.http.outbound.deadline import Deadline
from config.platform.http.outbound.ssrf_guard import AddressBlocked, SsrfGuard

__all__ = [
    "AddressBlocked",
    "Client",
    "Deadline",
    "ResponseTooLarge",
    "SsrfGuard",
    "Transport",
    "environment_proxy",
    "read_body",
    "read_chunks",
]
