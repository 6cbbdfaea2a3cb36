"""Idempotency keys: a repeated request returns the first result instead of creating a second one.

Follows draft-ietf-httpapi-idempotency-key-header. The key and the fingerprint of the body are columns of the row that
the request creates, written in the same transaction. A key therefore lives exactly as long as that row and survives
every restart. A unique constraint on (user, key) backs up the lock.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from uuid import UUID, uuid4

import orjson
from django.db.models import Model, QuerySet
from rest_framework.request import Request

from config.platform.db import sql
from config.platform.http.problems import BadInput, InputError, Problem

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
VALID_KEY = re.compile(r"[\x21-\x7e]{1,255}")
Row = TypeVar("Row", bound=Model)


class KeyReused(Problem):
    status = 422
    code = "idempotency_key_reused"
    detail = "This Idempotency-Key was already used with a different body. Use a new key for each new request."


class InFlight(Problem):
    status = 409
    code = "idempotency_in_flight"
    retry_after = 1
    detail = "Another request with this Idempotency-Key is still being processed. Retry in a moment."


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """The idempotency key of a request and the fingerprint of its body.

    Use `find` before validating the request, so that a repeated request gets the first result even if it would be
    rejected now. Use `claim` in the transaction that creates the row, and write `columns` to the row.
    """

    key: str
    fingerprint: str

    @classmethod
    def of(cls, request: Request, *, body: Callable[[], Any] | None = None) -> Self | None:
        """Read the header. Return None without it; raise BadInput for an invalid key.

        `body` returns the JSON to fingerprint if the request's body is not JSON, such as a form with a file.
        """
        key = request.headers.get(HEADER)
        if key is None:
            return None
        if not VALID_KEY.fullmatch(key):
            raise BadInput(
                InputError(
                    pointer="",
                    code="invalid_idempotency_key",
                    detail=f"{HEADER} must have 1 to 255 visible ASCII characters.",
                )
            )
        return cls(key=key, fingerprint=fingerprint(body() if body else request.data))

    @classmethod
    def of_form(cls, once: UUID | None, body: Any) -> Self:
        """Return the idempotency of a page's form, with a new key if `once` is missing or invalid."""
        return cls(key=str(once or uuid4()), fingerprint=fingerprint(body))

    @property
    def columns(self) -> dict[str, str]:
        return {"idempotency_key": self.key, "fingerprint": self.fingerprint}

    def find(self, rows: QuerySet[Row], *, user_id: int) -> Row | None:
        """Return the row that this user created under this key. Raise KeyReused if the body was a different one."""
        row: Any = rows.filter(user_id=user_id, idempotency_key=self.key).first()
        if row and row.fingerprint != self.fingerprint:
            raise KeyReused
        found: Row | None = row
        return found

    def claim(self, rows: QuerySet[Row], *, user_id: int) -> Row | None:
        """Lock the key for the rest of the transaction, and do what `find` does.

        Raise InFlight if another transaction has locked the key. Without the lock, two requests that both call `find`
        before either commits would create two rows.
        """
        self.lock(scope=f"{rows.model._meta.app_label}/{user_id}")
        return self.find(rows, user_id=user_id)

    def lock(self, *, scope: str) -> None:
        """Take an advisory lock. It applies to all web processes, and Postgres releases it if the process crashes."""
        digest = hashlib.sha256(f"{scope}/{self.key}".encode()).digest()
        number = int.from_bytes(digest[:8], signed=True)
        if not sql.scalar("SELECT pg_try_advisory_xact_lock(%(number)s)", number=number):
            raise InFlight


def replay_headers(*, replayed: bool) -> dict[str, str]:
    """Return the response headers: Idempotency-Replayed for a repeated request."""
    return {REPLAYED: "true"} if replayed else {}


def fingerprint(body: Any) -> str:
    """Return the SHA-256, in hex, of a body's JSON. It does not depend on the order of fields or on white space."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()
