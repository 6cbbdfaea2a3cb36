"""The source database: connections, and calls of a dataset's function streamed by COPY.

The source may be another server, such as a read replica, so it is accessed by psycopg and not through Django.
"""

import os
import re
import socket
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

import psycopg
from django.conf import settings
from psycopg import errors as sqlstate
from psycopg import sql
from psycopg.pq import ExecStatus, TransactionStatus

from config.platform.heartbeat import LeaseLost
from exports.core.errors import (
    PERMANENT,
    ExportError,
    PermanentSourceError,
    SourceBehindPooler,
    SourceConnectionsExhausted,
    SourceError,
    SourceTimeout,
    SourceUnavailable,
)

# Rows are passed on in blocks of about this size: large enough that the cost per block is negligible, small enough to
# stay in the processor's cache on the way to the hash and the upload.
BLOCK_BYTES = 256 * 1024

# The output of COPY must not depend on the configuration of the server or the role. `client_connection_check_interval`
# ends the query of a killed worker, which would otherwise run on beside its own retry.
SESSION = " ".join(
    f"-c {setting}"
    for setting in (
        "timezone=UTC",
        "datestyle=ISO,YMD",
        "intervalstyle=postgres",
        "extra_float_digits=1",
        "bytea_output=hex",
        "client_connection_check_interval=1000",
        "idle_in_transaction_session_timeout=60000",
        "lock_timeout=5000",
    )
)


def name_backend() -> str:
    """Return a unique name such as `sluice-export-web1-4711-9f86d081c3a2`, with host and process.

    Postgres keeps 63 bytes of it.
    """
    host = re.sub(r"[^A-Za-z0-9._-]", "", socket.gethostname())[-28:]
    return f"sluice-export-{host}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


class Session:
    """A connection to the source for the chunks of one worker, one after the other.

    It is opened by the first call and closed when the worker has no more chunks: so there is one connection for each
    used slot, and briefly one for a worker that claims its next chunk. `backend` is its name in pg_stat_activity, by
    which the reaper ends the query of a lost worker.
    """

    def __init__(self) -> None:
        self.backend = name_backend()
        self._connection: psycopg.Connection | None = None
        self._stream: Stream | None = None
        self._timeout = 0
        self.cancelled = False
        self.may_run_on = False  # whether the server may still run the last call

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def ending_calls(self) -> Iterator[None]:
        """After an error, end the call before its slot is freed for another worker."""
        self.may_run_on = False
        try:
            yield
        except BaseException:
            self.may_run_on = True  # also when ending it is interrupted
            self.may_run_on = not self._end_call()
            raise

    def _end_call(self) -> bool:
        """Return whether it is certain that the call has ended. A server notices a broken connection late or never."""
        if self._stream is not None:
            with suppress(ExportError):
                self._stream.close()
        if self._connection is None or self._connection.info.transaction_status == TransactionStatus.IDLE:
            return True
        self.close()
        name, self.backend = self.backend, name_backend()  # ending the old one later must not hit the next call
        try:
            return not end_calls([name])
        except ExportError:
            return False

    def cancel(self) -> None:
        """Cancel the running call, and prevent new ones while `cancelled` is set. Safe from another thread.

        Without the flag, a worker that was stopped before its call would still make it, at the same time as the worker
        that has its chunk by then.
        """
        self.cancelled = True
        if (connection := self._connection) is not None:
            connection.cancel_safe(timeout=2)

    def columns(self, function: tuple[str, str]) -> list["Column"]:
        """Return the columns of the function without calling it: LIMIT 0 runs no scan."""
        with translated():
            connection = self._open()
            described = connection.execute(
                sql.SQL("SELECT * FROM {}(NULL::text, NULL::date) LIMIT 0").format(sql.Identifier(*function))
            ).description
            oids = {column.name: column.type_code for column in described or []}
            types = {oid: kind for oid, *kind in connection.execute(TYPES, [list(oids.values())])}
        return [Column(name, *types[oid]) for name, oid in oids.items()]

    def stream(self, statement: sql.Composed, *, timeout: int) -> "Stream":
        """Prepare a COPY … TO STDOUT, which starts with the first block. `timeout`: statement_timeout in seconds."""
        with translated():
            connection = self._open()
            if timeout != self._timeout:
                connection.execute(sql.SQL("SET statement_timeout = {}").format(timeout * 1000))
                self._timeout = timeout
        self._stream = Stream(connection, statement)
        return self._stream

    def _open(self) -> psycopg.Connection:
        self._require_not_cancelled()
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._timeout = 0
            self._connection = connect(self.backend)
        self._require_not_cancelled()  # connecting may have taken a while
        return self._connection

    def _require_not_cancelled(self) -> None:
        if self.cancelled:
            raise LeaseLost


# Postgres' messages for SQLSTATE 53300: the role, the database or the server has reached its connection limit. libpq
# does not expose the SQLSTATE of a refused connection, so only the text identifies it.
NO_ROOM = ("too many connections", "too many clients", "connection slots are reserved")


# Detects within a minute that the source is gone without closing the connection.
KEEPALIVES: dict[str, Any] = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


def connect(backend: str) -> psycopg.Connection:
    """Open a connection. Raises SourceConnectionsExhausted, SourceBehindPooler, and psycopg's own errors."""
    try:
        connection = psycopg.connect(
            settings.SLUICE.source_url,
            autocommit=True,
            application_name=backend,
            options=SESSION,
            client_encoding="UTF8",
            connect_timeout=10,
            **KEEPALIVES,
            cursor_factory=psycopg.ClientCursor,  # COPY takes no bound parameters: psycopg quotes them itself
        )
    except psycopg.OperationalError as error:
        if any(words in str(error) for words in NO_ROOM):
            raise SourceConnectionsExhausted("SQLSTATE 53300") from None
        if "unsupported startup parameter" in str(error):  # PgBouncer's own message
            raise SourceBehindPooler("a pooler answers") from None
        raise
    if connection.info.parameter_status("DateStyle") != "ISO, YMD":
        connection.close()
        raise SourceBehindPooler("a pooler answers")
    return connection


class Column(NamedTuple):
    """A column of a dataset. Type names are those of Postgres, such as `timestamp with time zone`."""

    name: str
    type: str
    element: str | None  # the type of an array's elements
    is_text: bool


# A domain is resolved to its base type. Categories S and E are strings and enums.
TYPES = """
SELECT t.oid, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL),
       CASE WHEN t.typcategory = 'A' THEN format_type(t.typelem, NULL) END, t.typcategory IN ('S', 'E')
FROM pg_type t WHERE t.oid = ANY(%s)
"""


class Stream:
    """The output of a COPY in blocks.

    At the end, `rows` is the server's row count without the header, and `first_line` the length of the first line.

    psycopg's own reader waits for each row separately, which takes 1.5 times as long as psql. Here psycopg only waits
    for data, so that signals and cancelling work as usual; the rows that libpq has received are read in a tight loop.
    """

    def __init__(self, connection: psycopg.Connection, statement: sql.Composed) -> None:
        self._connection = connection
        self._statement = statement
        self._blocks = self._read()
        self.rows = 0
        self.first_line = 0

    def __iter__(self) -> Iterator[bytearray]:
        return self._blocks

    def close(self) -> None:
        """Stop the COPY. Raises the server's error, if it is not the cancellation itself."""
        self._blocks.close()

    def _read(self) -> Generator[bytearray]:
        with translated(), self._connection.cursor() as cursor, cursor.copy(self._statement) as copy:
            block = bytearray()
            while row := copy.read():
                self.first_line = self.first_line or len(row)
                block += row
                if self._drain(block):
                    yield block
                    return
                if len(block) >= BLOCK_BYTES:
                    yield block
                    block = bytearray()
            self.rows = cursor.rowcount
            yield block

    def _drain(self, block: bytearray) -> bool:
        """Append the rows that libpq has received, up to the block size. Return True at the end of the COPY."""
        take = self._connection.pgconn.get_copy_data
        size, row = take(1)
        while size > 0:
            block += row
            if len(block) >= BLOCK_BYTES:
                return False
            size, row = take(1)
        if size < 0:
            self._read_result()
        return size < 0

    def _read_result(self) -> None:
        """Read the result of the COPY. Only now is it known whether all rows were received."""
        results = []
        while (result := self._connection.pgconn.get_result()) is not None:
            results.append(result)
        if results[0].status != ExecStatus.COMMAND_OK:
            raise sqlstate.error_from_result(results[0])
        self.rows = results[0].command_tuples or 0


END_CALLS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = ANY(%s)
"""
STILL_THERE = "SELECT application_name FROM pg_stat_activity WHERE application_name = ANY(%s)"


def end_calls(backends: list[str]) -> set[str]:
    """End the connections of these names, with the calls that lost workers may have left running.

    Return those that still exist after some seconds. Raises an ExportError when the source is unreachable or does not
    permit it: then the state of the calls is unknown, and the slots must stay held.
    """
    with (
        translated(),
        psycopg.connect(settings.SLUICE.source_url, autocommit=True, connect_timeout=5, **KEEPALIVES) as connection,
    ):
        connection.execute(END_CALLS, [backends])
        return {name for (name,) in connection.execute(STILL_THERE, [backends])}


# Connection exceptions, too many connections, and a server that shuts down or starts up.
UNREACHABLE = ("08", "53300", "57P")


@contextmanager
def translated() -> Iterator[None]:
    """Translate psycopg's errors. Their messages, details and hints may quote rows, and are dropped."""
    try:
        yield
    except psycopg.Error as error:
        raise as_export_error(error.sqlstate) from None


def as_export_error(code: str | None) -> ExportError:
    """Return the export error of a SQLSTATE. None stands for a connection that failed or broke."""
    detail = f"SQLSTATE {code}" if code else ""
    if code is None or code.startswith(UNREACHABLE):
        return SourceUnavailable(detail)
    if code == "57014":  # query_canceled: the statement timeout, as all other cancellations end in LeaseLost
        return SourceTimeout(detail)
    return PermanentSourceError(detail) if code.startswith(PERMANENT) else SourceError(detail)
