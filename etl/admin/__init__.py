"""The staff's pages of documents. Their text, and what was made of it, is their owner's alone."""

from etl.admin import overview, tasks

__all__ = ["overview", "tasks"]
