"""`make demo`: what a stranger sees first. Real exports through a whole stack, and every byte of them checked.

Read it from `story` (the steps) to `client` (Sluice over HTTP), `comparison` (the files against the source) and
`screen` (progress). It uses none of the code of `exports`: what checks must not share the mistakes of what is checked.
"""

from config.stack.demo.story import main

__all__ = ["main"]
