"""Admin of documents. It never shows their content."""

from etl.admin import batches, evaluations, overview, quotas, tasks

__all__ = ["batches", "evaluations", "overview", "quotas", "tasks"]
