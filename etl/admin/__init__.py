"""Admin of documents. Only owners can view the text and the results."""

from etl.admin import batches, evaluations, overview, quotas, tasks

__all__ = ["batches", "evaluations", "overview", "quotas", "tasks"]
