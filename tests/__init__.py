"""Tests, benchmarks, and mutants. They and the libraries that they load write nothing into the home directory."""

import os
from pathlib import Path

os.environ.setdefault("MPLCONFIGDIR", str(Path(__file__).parents[1] / ".local" / "matplotlib"))
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # an ID and a database of events that wait to be sent
