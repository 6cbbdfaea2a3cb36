"""`sluice export …`"""

from sluice.cli.exports import change, finish, queries, schedule, submit
from sluice.cli.exports.shared import app

__all__ = ["app", "change", "finish", "queries", "schedule", "submit"]
