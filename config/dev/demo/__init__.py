"""`make demo`: real exports and documents through a whole local stack, with every result verified.

`story` has the steps, `client` the requests, `comparison` the files against the source database, `conversion` the
documents, and `screen` the progress. None of the code of `exports` and `etl` is used, so that the verification cannot
repeat its mistakes.
"""

from config.dev.demo.story import main

__all__ = ["main"]
