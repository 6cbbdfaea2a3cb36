"""The settings of processes that do not rehearse: real processors, which ask whatever model a test has set up."""

from config.settings import ETL_POSTPROCESSORS as REAL
from tests.chaos.settings import *  # noqa: F403

ETL_POSTPROCESSORS = REAL
