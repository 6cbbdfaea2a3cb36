"""Splitting of a document into pieces, and calls for each piece."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from django.conf import settings

from etl.core.stage_context import StageContext
from etl.postprocessors import parallel, splitting
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.splitting import Piece

T = TypeVar("T")


def split(text: DocumentText) -> list[Piece]:
    """Split a document into pieces of the configured size. Raises DocumentTooLong."""
    env = settings.SLUICE
    return splitting.split(text, size=env.etl_postprocess_chunk_size_chars, max_pieces=env.etl_postprocess_max_chunks)


def call_for_each(
    pieces: Sequence[Piece], call: Callable[[Piece, StageContext], T], *, steps: int, context: StageContext
) -> list[T]:
    """Run a call for each piece and return the results in order. Each finished call is reported as one of `steps`.
    Raises the errors of `parallel.run`."""
    context.progress(0, steps)
    return parallel.run(
        [partial(call, piece) for piece in pieces],
        concurrency=settings.SLUICE.etl_postprocess_parallel,
        context=context,
        on_done=lambda done: context.progress(done, steps),
    )
