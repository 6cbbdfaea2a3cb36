"""`sluice document …`"""

from sluice.documents import batch, change, finish, look, review, submit
from sluice.documents.shared import app

__all__ = ["app", "batch", "change", "finish", "look", "review", "submit"]
