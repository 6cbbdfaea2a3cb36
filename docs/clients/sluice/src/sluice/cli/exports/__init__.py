"""`sluice export …`"""

from sluice.cli.exports import change, finish, look, schedule, submit
from sluice.cli.exports.shared import app

__all__ = ["app", "change", "finish", "look", "schedule", "submit"]
