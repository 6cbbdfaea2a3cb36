"""Admin of documents. Their text and results are visible to their owners only."""

from etl.admin import evaluations, overview, quotas, tasks

__all__ = ["evaluations", "overview", "quotas", "tasks"]
