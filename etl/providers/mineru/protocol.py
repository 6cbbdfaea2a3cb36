"""Common interface of the three protocols: submit a job, poll it until it is finished, fetch its result."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any, BinaryIO, ClassVar

from etl.core.errors import EtlError, ProviderUnavailable
from etl.providers.base import Document
from etl.providers.mineru.client import InvalidOcrResponse, MinerUClient, MinerUResponse

MAX_ID_LENGTH = 200


class JobLost(Exception):
    """The server does not know the job, or cancelled it. It may have restarted, or deleted the old job."""


class JobFailed(Exception):
    """The server reports that the job has failed."""

    def __init__(self, error: EtlError) -> None:
        super().__init__(error.code)
        self.error = error


class WrongProtocol(ProviderUnavailable):
    """The OCR provider does not support the configured protocol, or no longer supports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """State of a job.

    `done` and `total`: numbers of pages, or 0 if the server does not report them. `url`: the result of a finished job.
    `facts`: fields of the result's metadata.
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

    def __init__(self, client: MinerUClient, *, tier: str = "") -> None:
        """Create a protocol.

        `tier`: a tier of MinerU 4.0, the server's own name of a backend or model, or "" for the protocol's default.
        """
        self.client = client
        self.tier = tier

    @abstractmethod
    def submit(self, document: Document) -> str:
        """Start a job and return its ID. Raises EtlError."""

    @abstractmethod
    def poll(self, job: str) -> JobState:
        """Return the state of a job. Raises JobLost, JobFailed, and EtlError."""

    @abstractmethod
    def fetch(self, job: str, state: JobState, *, into: BinaryIO) -> None:
        """Write the result of a finished job to a file. Raises JobLost, JobFailed, and EtlError."""

    def cancel(self, job: str) -> None:
        """Stop a job. Only for protocols with `can_cancel`."""
        raise NotImplementedError


class SelfHosted(Protocol):
    """Base class of the protocols of self-hosted servers. `tasks`: the path of jobs."""

    tasks: ClassVar[tuple[str, ...]]
    result_options: ClassVar[dict[str, Any]] = {}

    def upload(self, document: Document, **options: Any) -> str:
        response = self.client.upload(*self.tasks, document=document.path, name=document.name, **options)
        self.check(response)
        return job_id(response.json().get("task_id"))

    def poll(self, job: str) -> JobState:
        response = self.client.get(*self.tasks, job)
        self.check_job(response)
        return self.state(response.json())

    def fetch(self, job: str, state: JobState, *, into: BinaryIO) -> None:
        response = self.client.fetch(*self.tasks, job, "result", into=into, **self.result_options)
        if response.status == HTTPStatus.CONFLICT:
            self.state(response.json())
        self.check_job(response)
        if response.status != HTTPStatus.OK:
            raise InvalidOcrResponse

    def check_job(self, response: MinerUResponse) -> None:
        if response.status == HTTPStatus.NOT_FOUND:
            raise JobLost
        self.check(response)

    @abstractmethod
    def check(self, response: MinerUResponse) -> None:
        """Raise the error that a response reports."""

    @abstractmethod
    def state(self, body: dict[str, Any]) -> JobState:
        """Parse the state of a job. Raises JobLost, JobFailed, and InvalidOcrResponse."""


def job_id(value: Any) -> str:
    """Validate the ID of a job and return it. Raises InvalidOcrResponse."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_LENGTH or not value.isprintable():
        raise InvalidOcrResponse
    return value


def milliseconds(began: Any, ended: Any) -> dict[str, int]:
    """Return `duration_ms` between two ISO 8601 times, or an empty dictionary if they are invalid."""
    try:
        seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
    except (TypeError, ValueError):
        return {}
    return {"duration_ms": round(seconds * 1000)} if seconds >= 0 else {}


def count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
