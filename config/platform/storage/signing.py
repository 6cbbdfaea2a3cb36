"""Presigned URLs that are dated by the database's clock.

botocore dates them by the host's clock: on a host that is a minute behind, a URL for a minute has expired when it is
issued. Times of receipts and upload URLs are the database's, too.
"""

from typing import Any

from botocore.auth import AUTH_TYPE_MAPS, SIGV4_TIMESTAMP, S3SigV4QueryAuth

from config.platform.db import clock


class DatedQueryAuth(S3SigV4QueryAuth):
    def _modify_request_before_signing(self, request: Any) -> None:
        request.context["timestamp"] = clock.now().strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)  # type: ignore[misc]  # absent in the stubs


def install() -> None:
    """Make DatedQueryAuth the signer of presigned URLs in this process."""
    AUTH_TYPE_MAPS["s3v4-query"] = DatedQueryAuth
