"""The product's settings with an additional empty view, the baseline of P8."""

from config.settings import *  # noqa: F403

ROOT_URLCONF = "tests.bench.reads_urls"
