"""Models of exports, one aggregate per file."""

from config.platform.webhooks.models import Attempt, Delivery, Webhook
from exports.models.chunk import Chunk
from exports.models.dataset import Dataset
from exports.models.event import Event
from exports.models.file import File
from exports.models.grant import Grant
from exports.models.job import Job
from exports.models.link import Download, Link
from exports.models.receipt import Receipt
from exports.models.schedule import Schedule, ScheduleRun
from exports.models.slot import Slot
from exports.models.tick import Tick
from exports.models.usage import Allowance, Usage
from exports.models.watermark import Watermark

__all__ = [
    "Allowance", "Attempt", "Chunk", "Dataset", "Delivery", "Download", "Event", "File", "Grant", "Job", "Link",
    "Receipt", "Schedule", "ScheduleRun", "Slot", "Tick", "Usage", "Watermark", "Webhook",
]  # fmt: skip
