"""The product's settings, with one view more, which does nothing: what P8 measures against."""

from config.settings import *  # noqa: F403

ROOT_URLCONF = "tests.bench.reads_urls"
