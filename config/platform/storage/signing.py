"""Signer of presigned URLs that uses the database's clock.

botocore uses the host's clock. On a host whose clock is a minute slow, a URL that is valid for a minute would be
expired when it is issued. Receipts and upload URLs use the database's clock too.
"""

from typing import Any

from botocore.auth import AUTH_TYPE_MAPS, SIGV4_TIMESTAMP, S3SigV4QueryAuth

from config.platform.db import clock


class DatabaseClockQueryAuth(S3SigV4QueryAuth):
    def _modify_request_before_signing(self, request: Any) -> None:
        # botocore has no public option for the time. It has already set the host's time, which is replaced here.
        request.context["timestamp"] = clock.now().strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)  # type: ignore[misc]  # absent in the stubs


def install() -> None:
    """Make DatabaseClockQueryAuth the signer of presigned URLs in this process."""
    AUTH_TYPE_MAPS["s3v4-query"] = DatabaseClockQueryAuth
