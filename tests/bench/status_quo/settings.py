"""Sluice's settings with an endpoint and a connection pool for the source, as in a service without exports."""

from config import settings as shipped
from config.platform.db.base import pool_of
from config.settings import *  # noqa: F403

ROOT_URLCONF = "tests.bench.status_quo.urls"
DATABASES = {
    **shipped.DATABASES,
    "source": {
        **shipped.database(shipped.env.source_url),
        # Pooled like Sluice's database, and with prepared statements, so that Postgres plans them only once.
        "OPTIONS": {
            "pool": pool_of(shipped.env.database_pool_size),
            "server_side_binding": True,
            "prepare_threshold": 5,
        },
    },
}
