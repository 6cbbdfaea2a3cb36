"""The source database: connections, and the calls of a dataset's function in them.

The source may be another server, such as a read replica, so it is accessed by psycopg and not through Django.
"""

import hashlib
import os
import re
import secrets
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Self

import psycopg
from django.conf import settings
from psycopg import sql
from psycopg.pq import TransactionStatus

from config.platform.heartbeat import LeaseLost
from exports.core.errors import ExportError, SourceBehindPooler, SourceConnectionsExhausted
from exports.source.columns import Column, types_of
from exports.source.copy_stream import CopyStream, require_results
from exports.source.errors import translated

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
SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; DEALLOCATE ALL; UNLISTEN *; DISCARD TEMP; DISCARD SEQUENCES
"""


def reset_statements() -> str:
    seed = secrets.randbelow(2**53) / 2**53  # RESET does not undo a function's `setseed`
    return f"{RESET}; SELECT pg_advisory_unlock_all(), setseed({seed})"


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
        self._allow_writes = False
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
        """Roll back and reset, unless the call runs or the connection is broken. Return whether the session is clean.

        An idle session is reset too, because the end of the call may have prevented the reset.
        """
        try:
            if self._status() in (TransactionStatus.IDLE, TransactionStatus.INTRANS, TransactionStatus.INERROR):
                self._reset()
        except psycopg.Error:
            return False
        return self._status() == TransactionStatus.IDLE

    def _status(self) -> TransactionStatus | None:
        return self._connection.info.transaction_status if self._connection else None

    def _reset(self) -> None:
        """Reset the session. Before that, roll back the transaction if it is open."""
        if self._connection:
            is_open = self._status() != TransactionStatus.IDLE
            self._connection.execute(f"ROLLBACK; {reset_statements()}" if is_open else reset_statements())

    def cancel(self, chunk_id: int) -> None:
        """Cancel the call of a chunk, or prevent it if it has not started. Can be called from another thread.

        Without the `cancelled` flag, a worker that was suspended before its call would still make the call, at the same
        time as the worker that has claimed the chunk since. Writes are not committed after a cancellation. A later
        call, for another chunk, is not cancelled.
        """
        with self._lock:
            if chunk_id != self._chunk_id:
                return
            self.cancelled = True
            if (connection := self._connection) is not None:
                connection.cancel_safe(timeout=2)

    def begin(self, *, timeout: int, allow_writes: bool = False) -> None:
        """Prepare the transaction of a call, with a statement_timeout in seconds. It begins with the next statement.

        Writes are committed when all rows have been received, and rolled back if the call fails.
        """
        mode = "READ WRITE" if allow_writes else "READ ONLY"
        self._allow_writes = allow_writes
        with translated():
            self.connection()
        self._begin = (
            f"BEGIN {mode}; SELECT set_config('statement_timeout', '{timeout * 1000:d}', true),"
            f" pg_advisory_xact_lock_shared({lock_of(self.backend)})"
        )
        self._timeout = timeout

    def _take_begin(self) -> str:
        begin, self._begin = self._begin, ""
        return begin

    def describe(self, function: tuple[str, str]) -> list[Column]:
        """Return the columns of a function. Runs in a separate transaction."""
        self.begin(timeout=DESCRIBE_SECONDS)
        columns = self.columns(function)
        with translated():
            self._reset()
        return columns

    def columns(self, function: tuple[str, str]) -> list[Column]:
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

    def stream(self, statement: sql.Composed) -> CopyStream:
        """Prepare a COPY … TO STDOUT. It starts when the first block is read, and its end ends the transaction.

        A read-only call takes one round trip, because one message contains its whole transaction.
        """
        with translated():
            connection = self.connection()
            statements = [self._take_begin(), statement.as_string(connection)]
        if not self._allow_writes:
            statements += ["ROLLBACK", reset_statements()]
        send = partial(self._send, connection, "; ".join(filter(None, statements)))
        self._stream = CopyStream(connection, send, timeout=self._timeout, on_end=self._finish)
        return self._stream

    def _send(self, connection: psycopg.Connection, message: str) -> None:
        """Send a message of the current call, unless the call was cancelled. From then on, `cancel` cancels it."""
        with self._lock:
            self.require_not_cancelled()
            connection.pgconn.send_query(message.encode())

    def _finish(self, connection: psycopg.Connection) -> None:
        """Commit the writes after a successful COPY, if they are allowed, and make sure that the session is reset.

        After the commit, or the COPY of a read-only call, the call has succeeded: an error only closes the connection.
        """
        if self._allow_writes:
            with translated():
                require_results(connection)
                self._send(connection, "COMMIT")
                require_results(connection)
        try:
            with translated():
                if self._allow_writes:
                    self._reset()
                else:
                    require_results(connection)
        except ExportError:
            self.close()

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


def describe(function: tuple[str, str]) -> list[Column]:
    """Return the columns of a function, using a new connection. Raises ExportError."""
    with SourceSession() as session:
        return session.describe(function)


def call_of(function: tuple[str, str], key: sql.Composable, day: sql.Composable) -> sql.Composed:
    """Return the call for a FROM clause. If the function returns a single value, the alias becomes its column name."""
    return sql.SQL("{}({}::text, {}::date) AS call").format(sql.Identifier(*function), key, day)


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
