"""The ASGI application.

`uvicorn config.asgi:application --lifespan off --ws none --no-proxy-headers --no-access-log`:
uvicorn would believe any client's X-Forwarded-For, and its access lines hold query strings, links among them.
"""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django = get_asgi_application()

from config.api.bodies import BoundedBody  # noqa: E402 - it reads the settings, which are there only now

application = BoundedBody(django)
