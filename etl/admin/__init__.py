"""Admin of documents. Their text and results are visible to their owners only."""

from etl.admin import overview, tasks

__all__ = ["overview", "tasks"]
