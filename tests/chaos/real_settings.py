"""Settings of processes with real processors, which call the language model of the test."""

from config.settings import ETL_POSTPROCESSORS as REAL
from tests.chaos.settings import *  # noqa: F403

ETL_POSTPROCESSORS = REAL
