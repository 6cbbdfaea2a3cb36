"""Admin of documents. Their text and results are visible to their owners only."""

from etl.admin import batches, evaluations, overview, quotas, tasks

__all__ = ["batches", "evaluations", "overview", "quotas", "tasks"]
