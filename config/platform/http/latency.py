"""Interpreter settings that keep an expensive request from delaying all other requests of the process."""

import gc
import sys

# A thread that needs the GIL waits this long for each computing thread, and a request needs the GIL after each query.
# The default is 5 ms.
SWITCH_SECONDS = 0.0005
# New objects before a collection, and collections of each generation before one of the next. With Python's default of
# 700, large requests caused a full collection every second, and each held the GIL for up to a second.
THRESHOLDS = 20_000, 10, 10


def prefer_short_requests() -> None:
    """Switch threads often, and collect garbage rarely. Exclude existing objects from garbage collection."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
