"""`sluice document …`"""

from sluice.documents import change, finish, look, review, submit
from sluice.documents.shared import app

__all__ = ["app", "change", "finish", "look", "review", "submit"]
