"""ASGI application.

Run it with `uvicorn config.asgi:application --lifespan off --ws none --http config.connections:Connection
--no-proxy-headers --no-access-log`. By default, uvicorn accepts headers of any size, trusts X-Forwarded-For from
loopback clients, and logs query strings, which contain download links.
"""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django = get_asgi_application()

# These modules read the settings, which are available only after Django's setup.
from config.platform import startup, storage  # noqa: E402
from config.platform.http import graceful_shutdown, latency  # noqa: E402
from config.platform.http.body_limits import BoundedBody, Receive, Scope, Send  # noqa: E402
from config.platform.observability import error_reports, tracing  # noqa: E402
from etl.ingest.multipart import FILES  # noqa: E402

startup.require_valid_settings()
error_reports.start()
tracing.start("web")
storage.use_short_timeouts()
latency.prefer_short_requests()
bounded = BoundedBody(django, files=FILES)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    graceful_shutdown.watch()  # not earlier: uvicorn installs its signal handlers after this import
    await bounded(scope, receive, send)
