"""`sluice export …`"""

from sluice.exports import change, finish, look, schedule, submit
from sluice.exports.shared import app

__all__ = ["app", "change", "finish", "look", "schedule", "submit"]
