"""Files of built-in datasets, whose rows come from this service's database. The source database is not called."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from config.platform import built_in_datasets
from config.platform.built_in_datasets import CannotBuild, FileLayout
from exports.core.errors import RowsNotRepresentable, SourceTimeout
from exports.core.planning import Shape
from exports.source.copy_stream import BLOCK_BYTES
from exports.source.encoding import compress_blocks


class BuiltContent:
    """The bytes of a file in blocks, compressed if requested.

    `header_bytes` is 0, because a job has only one file, which is never joined with others.
    """

    header_bytes = 0

    def __init__(self, file: IO[bytes], rows: int, shape: Shape) -> None:
        self._file = file
        self._shape = shape
        self.rows = rows

    def __iter__(self) -> Iterator[bytes]:
        blocks = iter(lambda: self._file.read(BLOCK_BYTES), b"")
        if self._shape.format == "parquet" or self._shape.compression == "none":  # Parquet is compressed internally
            return blocks
        return compress_blocks(blocks, self._shape.compression)


@contextmanager
def opened(
    name: str,
    filters: Mapping[str, Any],
    shape: Shape,
    *,
    user_id: int,
    timeout: float,
    checkpoint: Callable[[], None],
) -> Iterator[BuiltContent]:
    """Build the file, and close it at the end.

    `timeout` is in seconds. `checkpoint` is called regularly and raises an error to stop the work. It must not write to
    the database, because the rows are read in one transaction. Raises SourceTimeout, RowsNotRepresentable, and Django's
    database errors.
    """
    until = time.monotonic() + timeout

    def checked() -> None:
        checkpoint()
        if time.monotonic() > until:
            raise SourceTimeout("select fewer documents by their dates or rule")

    layout = FileLayout(
        format=shape.format,
        compression=shape.compression,
        delimiter=shape.dialect.delimiter,
        bom=shape.dialect.bom,
        escapes_formulas=shape.dialect.formula_policy == "escape",
    )
    try:
        built = built_in_datasets.get(name).build(filters, user_id=user_id, layout=layout, checkpoint=checked)
    except CannotBuild as refusal:
        raise RowsNotRepresentable(str(refusal)) from None
    with built.content as file:
        yield BuiltContent(file, built.rows, shape)
