"""Settings of the interpreter that keep one expensive request from delaying all others of a process."""

import gc
import sys

# A thread that needs the GIL waits this long for each thread that computes, and a request needs it again after each
# query. The default is 5 ms.
SWITCH_SECONDS = 0.0005
# New objects before a collection, and collections of each generation before one of the next. With Python's 700, large
# requests caused a full collection a second, and each held the GIL for up to a second.
THRESHOLDS = 20_000, 10, 10


def prefer_short_requests() -> None:
    """Switch threads often, and collect garbage rarely. Objects that exist already are never collected."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
