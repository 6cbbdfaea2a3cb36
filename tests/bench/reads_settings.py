"""Sluice's settings with an additional empty view, which is the baseline of P8."""

from config.settings import *  # noqa: F403

ROOT_URLCONF = "tests.bench.reads_urls"
