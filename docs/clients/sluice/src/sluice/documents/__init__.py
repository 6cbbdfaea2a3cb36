"""`sluice document …`"""

from sluice.documents import change, finish, look, submit
from sluice.documents.shared import app

__all__ = ["app", "change", "finish", "look", "submit"]
