"""`sluice document …`"""

from sluice.cli.documents import batch, change, finish, queries, review, submit
from sluice.cli.documents.shared import app

__all__ = ["app", "batch", "change", "finish", "queries", "review", "submit"]
