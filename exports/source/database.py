"""The source database: connections, and calls of a dataset's function streamed by COPY.

The source may be another server, such as a read replica, so it is accessed by psycopg and not through Django.
"""

import hashlib
import os
import re
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Self

import psycopg
from django.conf import settings
from psycopg import errors as sqlstate
from psycopg import generators, sql
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Wait

from config.platform.heartbeat import LeaseLost
from exports.core.errors import (
    PERMANENT,
    ExportError,
    NoColumns,
    PermanentSourceError,
    RowTooLarge,
    SourceBehindPooler,
    SourceCancelled,
    SourceConflict,
    SourceConnectionsExhausted,
    SourceError,
    SourceTimeout,
    SourceUnavailable,
)

# Rows are processed in blocks of about this size: large enough to make the cost per block negligible, and small enough
# to stay in the processor's cache until they are hashed and uploaded.
BLOCK_BYTES = 256 * 1024
DESCRIBE_SECONDS = 30

# The output of COPY must not depend on the configuration of the server or the role. `client_connection_check_interval`
# ends the query of a killed worker, which would otherwise run at the same time as the retry.
SESSION = " ".join(
    f"-c {setting}"
    for setting in (
        "timezone=UTC",
        "datestyle=ISO,YMD",
        "intervalstyle=postgres",
        "extra_float_digits=1",
        "bytea_output=hex",
        "quote_all_identifiers=off",  # the names of types select their conversions
        "standard_conforming_strings=on",
        "client_connection_check_interval=1000",
        "idle_in_transaction_session_timeout=60000",
        "lock_timeout=5000",
    )
)


# Each call runs in a separate transaction. A function can change settings, the role, temporary tables, LISTEN
# registrations, and session-level locks, which may outlive the transaction. The next call, perhaps of another dataset,
# must not be affected. DISCARD ALL does the same, and discards cached plans, but cannot share a message with ROLLBACK.
RESET = """
SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; DEALLOCATE ALL; UNLISTEN *; SELECT pg_advisory_unlock_all();
DISCARD TEMP; DISCARD SEQUENCES
"""


def ending(end: str) -> str:
    """Return the statements that end a call's transaction by COMMIT or ROLLBACK, and reset the session."""
    seed = secrets.randbelow(2**53) / 2**53  # RESET does not undo a function's `setseed`
    return f"{end}; {RESET}; SELECT setseed({seed})"


def name_backend() -> str:
    """Return a unique application_name with host and process, such as `sluice-export-web1-4711-9f86d081c3a2`.

    It has at most 63 bytes, because Postgres truncates longer names.
    """
    host = re.sub(r"[^A-Za-z0-9._-]", "", socket.gethostname())[-28:]
    return f"sluice-export-{host}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


BACKEND = re.compile(r"sluice-export-(.+)-[0-9a-f]{12}")


def process_of(backend: str) -> str:
    """Return the host and process of a backend's name, such as `web1-4711`."""
    found = BACKEND.fullmatch(backend)
    return found[1] if found else backend


class SourceSession:
    """A worker's connection to the source, which runs one call at a time.

    The first call opens the connection, and it is closed before the worker frees its slot, so there is at most one
    connection for each held slot. `backend` is its application_name, which the reaper uses to end the query of a lost
    worker.
    """

    def __init__(self) -> None:
        self.backend = name_backend()
        self._connection: psycopg.Connection | None = None
        self._stream: CopyStream | None = None
        self._begin = ""  # the statements that begin the next call's transaction, until they are sent
        self._end = "ROLLBACK"
        self._timeout = 0
        self._chunk_id: int | None = None  # of the current call
        self._lock = threading.Lock()  # guards `_chunk_id` and `cancelled`
        self.cancelled = False
        self.may_still_run = False  # whether the server may still run the last call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def calling(self, chunk_id: int) -> Iterator[None]:
        """Mark the call of a chunk as running. After an error, end the call before another worker can get the slot.

        Raises LeaseLost if `cancel` stopped the call.
        """
        self.may_still_run = False
        self._begin_call(chunk_id)
        try:
            yield
        except BaseException as error:
            self.may_still_run = True  # in case the next line is interrupted
            self.may_still_run = not self._end_call()
            if self.cancelled and isinstance(error, ExportError):
                raise LeaseLost from None
            raise
        finally:
            self._begin_call(None)

    def _begin_call(self, chunk_id: int | None) -> None:
        with self._lock:
            self._chunk_id, self.cancelled = chunk_id, False

    def _end_call(self) -> bool:
        """End the call. Return whether it has certainly ended: a server detects a broken connection late or never."""
        if self._stream is not None:
            with suppress(ExportError):
                self._stream.close()
        if self._connection is None or self._rolled_back():
            return True
        self.close()
        name = self.backend
        self.backend = name_backend()  # if the old session ends later, the next call is not affected
        try:
            return not end_calls([name])
        except ExportError:
            return False

    def _rolled_back(self) -> bool:
        """Roll back, unless the call runs or the connection is broken. Return whether the transaction has ended."""
        try:
            if self._status() in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                self._reset("ROLLBACK")
        except psycopg.Error:
            return False
        return self._status() == TransactionStatus.IDLE

    def _status(self) -> TransactionStatus | None:
        return self._connection.info.transaction_status if self._connection else None

    def _reset(self, end: str) -> None:
        if self._connection:
            self._connection.execute(ending(end))

    def cancel(self, chunk_id: int) -> None:
        """Cancel the call of a chunk, or prevent it if it has not started. Can be called from another thread.

        Without the `cancelled` flag, a worker that was suspended before its call would still make the call, at the same
        time as the worker that has claimed the chunk since. A later call, for another chunk, is not cancelled.
        """
        with self._lock:
            if chunk_id != self._chunk_id:
                return
            self.cancelled = True
            if (connection := self._connection) is not None:
                connection.cancel_safe(timeout=2)

    def begin(self, *, timeout: int, allow_writes: bool = False) -> None:
        """Prepare the transaction of a call, with a statement_timeout in seconds. Its first statement begins it.

        Writes are committed when all rows have been received, and rolled back if the call fails.
        """
        mode = "READ WRITE" if allow_writes else "READ ONLY"
        self._end = "COMMIT" if allow_writes else "ROLLBACK"
        with translated():
            self.connection()
        self._begin = (
            f"BEGIN {mode}; SET LOCAL statement_timeout = {timeout * 1000:d};"
            f" SELECT pg_advisory_xact_lock_shared({lock_of(self.backend)})"
        )
        self._timeout = timeout

    def _take_begin(self) -> str:
        begin, self._begin = self._begin, ""
        return begin

    def describe(self, function: tuple[str, str]) -> list["Column"]:
        """Return the columns of a function. Runs in a separate transaction."""
        self.begin(timeout=DESCRIBE_SECONDS)
        columns = self.columns(function)
        with translated():
            self._reset("ROLLBACK")
        return columns

    def columns(self, function: tuple[str, str]) -> list["Column"]:
        """Return the columns of the function. Does not call it, because a query with LIMIT 0 runs no scan."""
        with translated():
            connection = self.connection()
            connection.execute(self._take_begin())
            cursor = connection.execute(
                sql.SQL("SELECT * FROM {} LIMIT 0").format(call_of(function, sql.NULL, sql.NULL))
            )
            oids = {column.name: column.type_code for column in cursor.description or []}
            modifiers = {name: cursor.pgresult.fmod(n) if cursor.pgresult else -1 for n, name in enumerate(oids)}
            types = types_of(connection, list(oids.values()))
        return [Column(name, *types[oid], modifiers[name]) for name, oid in oids.items()]

    @property
    def encoding(self) -> str:
        """The encoding of the database by its name in Postgres, such as `UTF8`."""
        return self.connection().info.parameter_status("server_encoding") or ""

    def stream(self, statement: sql.Composed) -> "CopyStream":
        """Prepare a COPY … TO STDOUT. It starts when the first block is read, and its end ends the transaction.

        A read-only call takes one round trip, because one message contains its whole transaction.
        """
        with translated():
            connection = self.connection()
            statements = [self._take_begin(), statement.as_string(connection)]
        if self._end == "ROLLBACK":
            statements.append(ending("ROLLBACK"))
        message = "; ".join(filter(None, statements))
        self._stream = CopyStream(connection, message, timeout=self._timeout, on_end=self._finish)
        return self._stream

    def _finish(self, connection: psycopg.Connection) -> None:
        """End the transaction after a successful COPY. For a read-only call, an error here does not matter."""
        try:
            with translated():
                for result in connection.wait(generators.fetch_many(connection.pgconn)):
                    require_success(result)
                if self._end == "COMMIT":
                    self._reset("COMMIT")
        except ExportError:
            self.close()
            if self._end == "COMMIT":
                raise

    def connection(self) -> psycopg.Connection:
        """Return the connection, and open it if necessary. Raises LeaseLost if the current call was cancelled."""
        self.require_not_cancelled()
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = connect(self.backend)
        self.require_not_cancelled()  # connecting may take long
        return self._connection

    def require_not_cancelled(self) -> None:
        """Raise LeaseLost if the current call was cancelled. Can be called from another thread."""
        if self.cancelled:
            raise LeaseLost


# Postgres' messages for SQLSTATE 53300: the role, the database, or the server has reached its connection limit. libpq
# does not expose the SQLSTATE of a refused connection, so only the text identifies it.
CONNECTIONS_EXHAUSTED = ("too many connections", "too many clients", "connection slots are reserved")


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
        if any(words in str(error) for words in CONNECTIONS_EXHAUSTED):
            raise SourceConnectionsExhausted("SQLSTATE 53300") from None
        if "unsupported startup parameter" in str(error):  # an error of PgBouncer
            raise SourceBehindPooler("connection pooler detected") from None
        raise
    if connection.info.parameter_status("DateStyle") != "ISO, YMD":
        connection.close()
        raise SourceBehindPooler("connection pooler detected")
    return connection


def describe(function: tuple[str, str]) -> list["Column"]:
    """Return the columns of a function, using a new connection. Raises ExportError."""
    with SourceSession() as session:
        return session.describe(function)


def call_of(function: tuple[str, str], key: sql.Composable, day: sql.Composable) -> sql.Composed:
    """Return the call for a FROM clause. If the function returns a single value, the alias becomes its column name."""
    return sql.SQL("{}({}::text, {}::date) AS call").format(sql.Identifier(*function), key, day)


class Column(NamedTuple):
    """A column of a dataset. Types have their Postgres names, such as `timestamp with time zone`."""

    name: str
    type: str
    element: str | None  # the type of an array's elements, or its base type if it is a domain
    scalar: str | None  # the same, or the base type of the innermost elements, if the elements are domains over arrays
    is_text: bool
    modifier: int = -1  # type modifier, such as the precision and scale of a numeric (of its elements for an array)

    @property
    def is_array(self) -> bool:
        """Whether the type is an array such as `integer[]`. Other types with elements, such as `int2vector`, aren't."""
        return self.type.endswith("[]")

    @property
    def is_nested(self) -> bool:
        """Whether the type is an array of a domain over an array."""
        return self.element != self.scalar


# Postgres reports the base type for a column whose type is a domain, but not for an array of a domain.
#
# `is_text` is true unless a spreadsheet cannot run the type's output as a formula. Arrays, composites, ranges, and
# records (A, C, R, and P) start with brackets. Postgres' own types of the other categories are numbers, dates, and the
# like, except `regoper` and `regoperator` (N), whose values are operators such as `=(integer,integer)`. In JSON, only
# numbers can start with a sign.
TYPES = """
SELECT oid, format_type(oid, NULL), CASE WHEN typcategory = 'A' THEN typelem END,
       NOT (typcategory IN ('A', 'C', 'R', 'P') OR typnamespace = 'pg_catalog'::regnamespace AND (
           typcategory IN ('B', 'D', 'G', 'I', 'N', 'T', 'V') AND typname NOT IN ('regoper', 'regoperator')
           OR typname IN ('json', 'jsonb')))
FROM pg_type WHERE oid = ANY(%s)
"""
# The first type that is not a domain is the base type. The last type is the base type of the innermost elements.
BASE_TYPES = """
WITH RECURSIVE base AS (
    SELECT oid AS element, oid, 1 AS depth FROM pg_type WHERE oid = ANY(%s)
    UNION ALL
    SELECT base.element, CASE typtype WHEN 'd' THEN typbasetype ELSE typelem END, depth + 1
    FROM base JOIN pg_type t USING (oid) WHERE typtype = 'd' OR typcategory = 'A'
)
SELECT element, (array_agg(format_type(oid, NULL) ORDER BY depth) FILTER (WHERE typtype <> 'd'))[1],
       (array_agg(format_type(oid, NULL) ORDER BY depth DESC))[1]
FROM base JOIN pg_type USING (oid) GROUP BY element
"""


def types_of(connection: psycopg.Connection, oids: list[int]) -> dict[int, tuple[str, str | None, str | None, bool]]:
    """Return for each type ID the fields `type`, `element`, `scalar`, and `is_text` of a Column."""
    types = connection.execute(TYPES, [oids]).fetchall()
    elements = [element for _, _, element, _ in types if element]
    found = connection.execute(BASE_TYPES, [elements]).fetchall() if elements else []
    bases: dict[int, tuple[str, str]] = {element: (base, scalar) for element, base, scalar in found}
    return {oid: (name, *bases.get(element, (None, None)), is_text) for oid, name, element, is_text in types}


class CopyStream:
    """The output of a COPY in blocks.

    After the last block, `rows` is the server's row count without the header. `first_line` is the length of the first
    line in bytes.

    psycopg's reader waits for each row separately, which takes 1.5 times as long as psql, and refuses other statements
    in the same message. Here, psycopg is only used to wait for data, so that signals and cancellation work as usual.
    The rows that libpq has received are then read in a tight loop.

    `message` contains the COPY, and may contain other statements before and after it. `on_end` is called after the end
    of the COPY, and must read the results of the statements after it.
    """

    def __init__(
        self,
        connection: psycopg.Connection,
        message: str,
        *,
        timeout: int,
        on_end: Callable[[psycopg.Connection], None],
    ) -> None:
        self._connection = connection
        self._message = message
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
        pgconn = self._connection.pgconn
        pgconn.send_query(self._message.encode())
        *_, last = self._connection.wait(generators.execute(pgconn))
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


def require_success(result: PGresult) -> None:
    """Raise psycopg's error if the statement of the result has failed."""
    if result.status == ExecStatus.FATAL_ERROR:
        raise sqlstate.error_from_result(result)


# Sessions are found by name or by advisory lock: a function can change the application_name of its session, but cannot
# release a transaction-level lock.
SESSIONS = """
WITH lost AS (
    SELECT pid, application_name AS name FROM pg_stat_activity WHERE application_name = ANY(%(names)s)
    UNION
    SELECT pid, name FROM pg_locks JOIN unnest(%(names)s, %(locks)s) AS held (name, lock)
    ON locktype = 'advisory' AND objsubid = 1 AND classid::bigint << 32 | objid::bigint = lock
)
"""
END_CALLS = SESSIONS + "SELECT pg_terminate_backend(pid, 5000) FROM lost"
REMAINING_CALLS = SESSIONS + "SELECT name FROM lost"


def lock_of(backend: str) -> int:
    """Return the ID of the advisory lock that the calls of a session hold."""
    return int.from_bytes(hashlib.sha256(backend.encode()).digest()[:8], signed=True)


def end_calls(backends: list[str]) -> set[str]:
    """End the sessions with these names, and the calls of lost workers that may still run in them.

    Return the names of sessions that still exist after some seconds. Raises ExportError if the source is unreachable or
    does not permit it. In that case, the calls may still run, and the slots must stay held.
    """
    with (
        translated(),
        psycopg.connect(settings.SLUICE.source_url, autocommit=True, connect_timeout=5, **KEEPALIVES) as connection,
    ):
        sessions = {"names": backends, "locks": [lock_of(name) for name in backends]}
        connection.execute(END_CALLS, sessions)
        return {name for (name,) in connection.execute(REMAINING_CALLS, sessions)}


QUERY_CANCELED = "57014"
CONFLICTS = {"40001", "40P01"}  # serialization failures, conflicts with recovery on a replica, and deadlocks
# Connection exceptions, too many connections, and a server that shuts down or starts up.
UNREACHABLE = ("08", "53300", "57P")


@contextmanager
def translated(*, timeout: float = 0) -> Iterator[None]:
    """Translate psycopg's errors. Messages, details, and hints may quote data, and are stored only in the chunk's row.

    `timeout` is the statement timeout in seconds. A cancellation by an administrator has the same SQLSTATE, but happens
    before the timeout.
    """
    started = time.monotonic()
    try:
        yield
    except psycopg.Error as error:
        code = error.sqlstate
        if code == QUERY_CANCELED and time.monotonic() - started < timeout - 1:
            raise SourceCancelled(f"SQLSTATE {code}") from None
        raise as_export_error(code, message_of(error.diag)) from None


def as_export_error(code: str | None, message: str = "") -> ExportError:
    return class_of(code)(f"SQLSTATE {code}" if code else "", message=message)


def class_of(code: str | None) -> type[ExportError]:
    """Return the error class for an SQLSTATE, which is None if the connection failed or broke."""
    if code is None or code.startswith(UNREACHABLE):
        return SourceUnavailable
    if code == QUERY_CANCELED:
        return SourceTimeout
    if code in CONFLICTS:
        return SourceConflict
    return PermanentSourceError if code.startswith(PERMANENT) else SourceError


MAX_MESSAGE = 1_000  # characters
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def message_of(diagnostic: psycopg.errors.Diagnostic) -> str:
    """Return the message, detail, and hint of an error, without control characters."""
    parts = (diagnostic.message_primary, diagnostic.message_detail, diagnostic.message_hint)
    return CONTROL.sub(" ", "\n".join(part[:MAX_MESSAGE] for part in parts if part))[:MAX_MESSAGE]
