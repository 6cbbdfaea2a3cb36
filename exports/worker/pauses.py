"""Pauses for datasets whose files the object storage refuses, while it accepts files of other datasets.

A bucket policy, a quota, or a rate limit may apply only to some paths. Without a pause, workers would call the source
for every chunk of the dataset, although the file cannot be stored.
"""

import time
from dataclasses import dataclass

from django.conf import settings

from config.platform import backoff


@dataclass
class Pause:
    refusals: int = 0
    until: float = 0  # a value of `time.monotonic()`


class DatasetPauses:
    """The pauses in this process. The pauses of a dataset grow exponentially until a file is stored."""

    def __init__(self) -> None:
        self._pauses: dict[str, Pause] = {}

    def begin(self, dataset: str) -> None:
        pause = self._pauses.setdefault(dataset, Pause())
        pause.refusals += 1
        base, maximum = settings.SLUICE.export_backoff_base_seconds, settings.SLUICE.export_backoff_max_seconds
        pause.until = time.monotonic() + backoff.exponential(pause.refusals, base=base, maximum=maximum)

    def end(self, dataset: str) -> None:
        self._pauses.pop(dataset, None)

    def datasets(self) -> list[str]:
        """Return the names of the paused datasets."""
        now = time.monotonic()
        return [name for name, pause in self._pauses.items() if pause.until > now]
