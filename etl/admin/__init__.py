"""Admin of documents. Their text and results are visible to their owners only."""

from etl.admin import batches, overview, quotas, tasks

__all__ = ["batches", "overview", "quotas", "tasks"]
