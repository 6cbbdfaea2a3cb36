"""The one call into the source database: a function's rows, streamed by COPY.

The source may be another server, a read replica say, so it is reached by psycopg alone and not through Django.
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

# Rows are handed on in blocks of about this many bytes: large enough that the cost a block is nothing,
# small enough to stay in the processor's cache on the way to the hash and the upload.
BLOCK_BYTES = 256 * 1024

# What COPY writes must not depend on how the server or the role is configured. `client_connection_check_interval`
# ends a query whose worker was killed; without it the query runs on beside its own retry.
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
    """Return such as `sluice-export-web1-4711-9f86d081`: of this host and process, and never the same again. Postgres
    keeps 63 bytes of it."""
    host = re.sub(r"[^A-Za-z0-9._-]", "", socket.gethostname())[-28:]
    return f"sluice-export-{host}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


class Session:
    """A connection to the source that serves the chunks of one worker, one after the other.

    It is opened by the first call and closed when the worker has nothing more to do: there is one connection for each
    slot in use, and for a moment that of a worker that looks for its next chunk. `backend` names it in
    pg_stat_activity: by that name the reaper ends the query of a worker that was lost.
    """

    def __init__(self) -> None:
        self.backend = name_backend()
        self._connection: psycopg.Connection | None = None
        self._stream: Stream | None = None
        self._timeout = 0
        self.cancelled = False
        self.may_run_on = False  # the last call, although it is over for us

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
        """End the call that an error leaves behind: before its slot is given to somebody else, not some time after."""
        self.may_run_on = False
        try:
            yield
        except BaseException:
            self.may_run_on = True  # also when ending it is cut short
            self.may_run_on = not self._end_call()
            raise

    def _end_call(self) -> bool:
        """Return whether it is sure that no call of ours runs on. When a connection broke, the server that runs the
        query notices a second later, or never."""
        if self._stream is not None:
            with suppress(ExportError):
                self._stream.close()
        if self._connection is None or self._connection.info.transaction_status == TransactionStatus.IDLE:
            return True
        self.close()
        name, self.backend = self.backend, name_backend()  # whoever looks for the old one must not find the next call
        try:
            return not end_calls([name])
        except ExportError:
            return False

    def cancel(self) -> None:
        """Ask the server to end the call that runs now, and let none begin while `cancelled` stands.

        Safe from another thread. Without the flag a worker that stood still before its call would make it after all,
        beside the one of the worker that has its chunk by now.
        """
        self.cancelled = True
        if (connection := self._connection) is not None:
            connection.cancel_safe(timeout=2)

    def columns(self, function: tuple[str, str]) -> list["Column"]:
        """Return the columns that the function gives, without calling it: LIMIT 0 runs no scan."""
        with translated():
            connection = self._open()
            described = connection.execute(
                sql.SQL("SELECT * FROM {}(NULL::text, NULL::date) LIMIT 0").format(sql.Identifier(*function))
            ).description
            oids = {column.name: column.type_code for column in described or []}
            types = {oid: kind for oid, *kind in connection.execute(TYPES, [list(oids.values())])}
        return [Column(name, *types[oid]) for name, oid in oids.items()]

    def stream(self, statement: sql.Composed, *, timeout: int) -> "Stream":
        """Prepare a COPY … TO STDOUT; it starts with the first block. `timeout`: statement_timeout in seconds."""
        with translated():
            connection = self._open()
            if timeout != self._timeout:
                connection.execute(sql.SQL("SET statement_timeout = {}").format(timeout * 1000))
                self._timeout = timeout
        self._stream = Stream(connection, statement)
        return self._stream

    def _open(self) -> psycopg.Connection:
        self._expect_wanted()
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._timeout = 0
            self._connection = connect(self.backend)
        self._expect_wanted()  # connecting may have taken long
        return self._connection

    def _expect_wanted(self) -> None:
        if self.cancelled:
            raise LeaseLost


# What Postgres says with 53300 when the role, the database or the server has as many connections as it may. Of a
# connection that is refused libpq keeps the SQLSTATE to itself, so that only the words tell.
NO_ROOM = ("too many connections", "too many clients", "connection slots are reserved")


# A source that went away without a word is noticed within a minute.
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
        if "unsupported startup parameter" in str(error):  # of PgBouncer alone
            raise SourceBehindPooler("a pooler answers") from None
        raise
    if connection.info.parameter_status("DateStyle") != "ISO, YMD":
        connection.close()
        raise SourceBehindPooler("a pooler answers")
    return connection


class Column(NamedTuple):
    """A column of a dataset. Types are written as Postgres writes them: `timestamp with time zone`."""

    name: str
    type: str
    element: str | None  # the type of an array's elements
    is_text: bool


# A domain counts as the type that it is made of; categories S and E are strings and enums.
TYPES = """
SELECT t.oid, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL),
       CASE WHEN t.typcategory = 'A' THEN format_type(t.typelem, NULL) END, t.typcategory IN ('S', 'E')
FROM pg_type t WHERE t.oid = ANY(%s)
"""


class Stream:
    """The bytes that a COPY sends, in blocks. At the end `rows` says how many rows the server counted, the header
    not among them, and `first_line` how many bytes the first line has.

    psycopg's own reader waits anew for each row, which takes half as long again as psql. Here psycopg only waits for
    data, so that signals and cancelling work as usual; the rows that libpq holds by then are taken in one tight loop.
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
        """End the COPY where it is. Raises what the server says to that, if it says anything else than that it did."""
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
        """Move the rows that libpq holds into the block, up to its size. Return True at the end of the COPY."""
        take = self._connection.pgconn.get_copy_data
        size, row = take(1)
        while size > 0:
            block += row
            if len(block) >= BLOCK_BYTES:
                return False
            size, row = take(1)
        if size < 0:
            self._read_verdict()
        return size < 0

    def _read_verdict(self) -> None:
        """Read how the COPY ended: only now is it known whether all rows came."""
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
    """End the connections of these names, and with them the calls that a lost worker may have left running.

    Returns those that are still there after some seconds. Raises an ExportError when the source cannot be asked, or
    does not let us end them: then nobody knows, and the slots stay taken.
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
    """Turn psycopg's errors into ours. Their messages, details and hints may quote rows, and go no further."""
    try:
        yield
    except psycopg.Error as error:
        raise as_export_error(error.sqlstate) from None


def as_export_error(code: str | None) -> ExportError:
    """Return our error for a SQLSTATE; None stands for a connection that failed or broke."""
    detail = f"SQLSTATE {code}" if code else ""
    if code is None or code.startswith(UNREACHABLE):
        return SourceUnavailable(detail)
    if code == "57014":  # query_canceled: the statement timeout, as nobody else cancels without taking the lease
        return SourceTimeout(detail)
    return PermanentSourceError(detail) if code.startswith(PERMANENT) else SourceError(detail)
