"""Admin of documents. Their text and results are visible to their owners only."""

from etl.admin import overview, quotas, tasks

__all__ = ["overview", "quotas", "tasks"]
