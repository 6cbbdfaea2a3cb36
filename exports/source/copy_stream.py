"""The output of a COPY, streamed in blocks."""

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress

import psycopg
from django.conf import settings
from psycopg import errors as sqlstate
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Wait

from exports.core.errors import NoColumns, RowTooLarge
from exports.source.errors import translated

# Rows are processed in blocks of about this size: large enough to make the cost per block negligible, and small enough
# to stay in the processor's cache until they are hashed and uploaded.
BLOCK_BYTES = 256 * 1024


class CopyStream:
    """The output of a COPY in blocks.

    After the last block, `rows` is the server's row count without the header. `first_line` is the length of the first
    line in bytes.

    psycopg's reader waits for each row separately, which takes 1.5 times as long as psql, and refuses other statements
    in the same message. Here, psycopg is only used to wait for data, so that signals and cancellation work as usual.
    The rows that libpq has received are then read in a tight loop.

    `send` sends a message with the COPY, which may contain other statements before and after it. `on_end` is called
    after the end of the COPY, and must read the results of the statements after it.
    """

    def __init__(
        self,
        connection: psycopg.Connection,
        send: Callable[[], None],
        *,
        timeout: int,
        on_end: Callable[[psycopg.Connection], None],
    ) -> None:
        self._connection = connection
        self._send = send
        self._timeout = timeout
        self._on_end = on_end
        self._max_row = settings.SLUICE.export_max_row_bytes
        self._blocks = self._read()
        self.rows = 0
        self.first_line = 0

    def __iter__(self) -> Iterator[bytearray]:
        return self._blocks

    def close(self) -> None:
        """Stop the COPY."""
        self._blocks.close()

    def _read(self) -> Generator[bytearray]:
        block = bytearray()
        with translated(timeout=self._timeout):
            try:
                self._start()
                while not self._drain(block):
                    if len(block) >= BLOCK_BYTES:
                        yield block
                        block = bytearray()
                    else:
                        self._connection.wait(received(self._connection.pgconn))
                self.rows = self._result().command_tuples or 0
            except BaseException:
                with suppress(psycopg.Error):
                    self._stop()
                raise
            self._on_end(self._connection)
        yield block

    def _start(self) -> None:
        """Send the message, and wait until the COPY has started."""
        self._send()
        *_, last = self._connection.wait(generators.execute(self._connection.pgconn))
        require_success(last)
        if not last.nfields:
            raise NoColumns

    def _drain(self, block: bytearray) -> bool:
        """Append the rows that libpq has received, up to the block size. Return whether the COPY has ended."""
        take = self._connection.pgconn.get_copy_data
        size, row = take(1)
        self.first_line = self.first_line or max(size, 0)
        while size > 0:
            self._add(block, row)
            if len(block) >= BLOCK_BYTES:
                return False
            size, row = take(1)
        return size < 0

    def _add(self, block: bytearray, row: bytes | bytearray | memoryview) -> None:
        if len(row) > self._max_row:
            raise RowTooLarge(f"a row has {len(row):,} bytes, and the limit is {self._max_row:,}")
        block += row

    def _result(self) -> PGresult:
        """Return the result of the COPY, which shows whether all rows were received."""
        wait, pgconn = self._connection.wait, self._connection.pgconn
        result: PGresult | None = wait(generators.fetch(pgconn))
        if result is None:
            raise psycopg.OperationalError("the COPY has no result")
        if result.status == ExecStatus.FATAL_ERROR:
            with suppress(psycopg.Error):
                wait(generators.fetch_many(pgconn))  # so that there is nothing to cancel
        require_success(result)
        return result

    def _stop(self) -> None:
        """Cancel the message, and read its remaining rows and results."""
        connection = self._connection
        if connection.info.transaction_status != TransactionStatus.ACTIVE:
            return
        connection.cancel_safe(timeout=2)
        while (size := connection.pgconn.get_copy_data(1)[0]) >= 0:
            if not size:
                connection.wait(received(connection.pgconn))
        connection.wait(generators.fetch_many(connection.pgconn))


def received(pgconn: PGconn) -> PQGen[None]:
    """Wait until the server has sent more data. A generator for `Connection.wait`."""
    yield Wait.R
    pgconn.consume_input()


def require_results(connection: psycopg.Connection) -> None:
    """Read the remaining results of a message. Raises psycopg's error if a statement has failed."""
    for result in connection.wait(generators.execute(connection.pgconn)):
        require_success(result)


def require_success(result: PGresult) -> None:
    """Raise psycopg's error if the statement of the result has failed."""
    if result.status == ExecStatus.FATAL_ERROR:
        raise sqlstate.error_from_result(result)
