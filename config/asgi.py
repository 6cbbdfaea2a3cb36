"""The ASGI application.

`uvicorn config.asgi:application --lifespan off --ws none --http config.connections:Connection --no-proxy-headers
--no-access-log`: uvicorn would take headers without end, and believe any client's X-Forwarded-For; its access lines
hold query strings, links among them.
"""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django = get_asgi_application()

# They read the settings, which are there only now.
from config.platform import startup, storage  # noqa: E402
from config.platform.http import graceful_shutdown  # noqa: E402
from config.platform.http.body_limits import BoundedBody, Receive, Scope, Send  # noqa: E402
from config.platform.observability import error_reports, tracing  # noqa: E402
from etl.ingest.multipart import FILES  # noqa: E402

startup.insist_on_settings()
error_reports.begin()
tracing.begin("web")
storage.hurry()
bounded = BoundedBody(django, files=FILES)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    graceful_shutdown.watch()  # with the first request: uvicorn listens for signals itself once it has loaded this
    await bounded(scope, receive, send)
