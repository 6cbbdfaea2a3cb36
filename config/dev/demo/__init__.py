"""`make demo`: what a stranger sees first. Real exports and documents through a whole stack, and all of them checked.

Read it from `story` (the steps) to `client` (Sluice over HTTP), `comparison` (the files against the source), `papers`
(documents) and `screen` (progress). It uses none of the code of `exports` and `etl`: what checks must not share the
mistakes of what is checked.
"""

from config.dev.demo.story import main

__all__ = ["main"]
