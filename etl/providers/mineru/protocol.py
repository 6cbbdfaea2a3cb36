"""What the three protocols have in common: a job is begun, looked at until it is over, and its result fetched."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO, ClassVar

from etl.core.errors import EtlError, ProviderUnavailable
from etl.providers.base import Document
from etl.providers.mineru.client import Door, Garbage

LONGEST_ID = 200


class Gone(Exception):
    """The server knows no such job, or has cancelled it: it was started anew, or keeps jobs for a shorter time."""


class Failed(Exception):
    """The server says that the job has failed."""

    def __init__(self, error: EtlError) -> None:
        super().__init__(error.code)
        self.error = error


class WrongProtocol(ProviderUnavailable):
    """The OCR provider does not speak the protocol that is set, or that it spoke before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a job stands. `done` of `total` pages, where the server counts them; `url`: where a finished one's result
    lies; `facts` go into the metadata.
    """

    is_over: bool
    is_partial: bool = False
    done: int = 0
    total: int = 0
    url: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


class Protocol(ABC):
    name: ClassVar[str]
    can_cancel: ClassVar[bool] = False

    def __init__(self, door: Door, *, tier: str = "") -> None:
        """`tier`: the quality to ask for, in the server's or our word; "" for the best."""
        self.door = door
        self.tier = tier

    @abstractmethod
    def submit(self, document: Document) -> str:
        """Begin a job and return its id. Raises an EtlError."""

    @abstractmethod
    def look(self, job: str) -> Standing:
        """Return how the job stands. Raises Gone, Failed, or an EtlError when that cannot be found out."""

    @abstractmethod
    def fetch(self, job: str, standing: Standing, *, into: BinaryIO) -> None:
        """Store a finished job's result. Raises Gone, Failed, or an EtlError."""

    def cancel(self, job: str) -> None:
        """Stop a job, where the protocol `can_cancel`."""
        raise NotImplementedError


def job_id(value: Any) -> str:
    """Return a job's id as it came. Raises Garbage for what is none."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_ID or not value.isprintable():
        raise Garbage
    return value


def milliseconds(began: Any, ended: Any) -> dict[str, int]:
    """Return `duration_ms` between two ISO 8601 times, nothing when they are none."""
    try:
        seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
    except (TypeError, ValueError):
        return {}
    return {"duration_ms": round(seconds * 1000)} if seconds >= 0 else {}


def count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
