"""`Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header): a repeated request is answered, not done again.

The key and the fingerprint of the body are columns of the row that the request makes, written in its transaction, so
that a key lives exactly as long as what it made, and survives every restart. A unique constraint on (user, key) is the
last word. What is here is what all such rows share.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import orjson
from django.db import connection
from rest_framework.request import Request

from config.platform.http.problems import BadInput, InputError, Problem

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
SANE_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class KeyReused(Problem):
    """This Idempotency-Key was used with another body before. Use a new key for a new request."""

    status = 422
    code = "idempotency_key_reused"


class InFlight(Problem):
    """A request with this Idempotency-Key is being worked on. Ask again in a moment."""

    status = 409
    code = "idempotency_in_flight"
    retry_after = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """The key of a request, and what its body is known by: SHA-256 of its JSON with sorted names, in hex. So another
    order of fields or other white space is the same request."""

    key: str
    fingerprint: str

    @classmethod
    def of(cls, request: Request, *, body: Callable[[], Any] | None = None) -> Self | None:
        """Return what the request says, or None without the header. Raises BadInput for a key that is none.

        `body` makes the JSON that stands for a body that is none: one with a file in it.
        """
        key = request.headers.get(HEADER)
        if key is None:
            return None
        if not SANE_KEY.fullmatch(key):
            raise BadInput(
                InputError(
                    pointer="",
                    code="invalid_idempotency_key",
                    detail=f"{HEADER} takes 1 to 255 visible ASCII characters.",
                )
            )
        return cls(key=key, fingerprint=fingerprint(body() if body else request.data))

    def claim(self, *, scope: str) -> None:
        """Hold the key to the end of the transaction, or raise InFlight. A lock in the database: no row has to be
        cleaned up after a process that died, and all web processes see it."""
        digest = hashlib.sha256(f"{scope}/{self.key}".encode()).digest()
        number = int.from_bytes(digest[:8], signed=True)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [number])
            if cursor.fetchone() != (True,):
                raise InFlight


def fingerprint(body: Any) -> str:
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()
