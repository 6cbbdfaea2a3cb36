"""HTTP requests to the server, with retries where they are safe."""

import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from copy import copy
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self
from uuid import uuid4

import httpx2

from sluice import exact_json
from sluice.account import Account, is_loopback
from sluice.errors import InvalidResponse, Problem, TimedOut, Unreachable
from sluice.network import Network

__version__ = "0.1.0"
AGENT = f"sluice-client/{__version__}"
CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 60.0
# How long to retry while the server is unreachable, and while it is busy.
AWAY_SECONDS, BUSY_SECONDS = 5.0, 60.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0
MAX_ERROR_BYTES = 1_000_000
MAX_PER_PAGE = 200
SILENCE_SECONDS = 300.0  # time without a byte: the server prepares the results of a batch before it sends them
# Errors after which a request can be repeated: the server is busy, or it processes a request with the same key.
BUSY = {429, 502, 503, 504}
IN_FLIGHT = "idempotency_in_flight"

Body = Callable[[], Mapping[str, Any]]  # arguments for httpx2, created for each attempt
Params = Mapping[str, Any] | None
log = logging.getLogger("sluice")


class Api:
    """A server, with the credentials of an account.

    `patience`: seconds to retry, instead of the default of each request. After `deadline` (by `time.monotonic`),
    requests raise TimedOut.
    """

    def __init__(self, account: Account, network: Network, *, patience: float | None = None) -> None:
        self.account, self.network, self.patience = account, network, patience
        self.deadline = float("inf")
        headers = {"Authorization": f"Bearer {account.token}", "User-Agent": AGENT, "Accept": "application/json"}
        # Redirects are not followed: the token is for this server only.
        self.http = network.client(headers=headers, follow_redirects=False, **proxy_options(account.url))

    def until(self, timeout: float | None) -> Self:
        """Return a copy with a time limit in seconds, for an operation of several requests."""
        limited = copy(self)
        if timeout is not None:
            limited.deadline = time.monotonic() + timeout
        return limited

    # ---- Requests ---------------------------------------------------------------------------------------------------

    async def get(self, path: str, params: Params = None, *, away: float = AWAY_SECONDS) -> Any:
        return checked_json(await self.request("GET", path, params=params, repeatable=True, away=away))

    async def post(self, path: str, body: Any = None, *, repeatable: bool = False) -> Any:
        return checked_json(await self.request("POST", path, body=json_body(body or {}), repeatable=repeatable))

    async def create(self, path: str, body: Body, *, key: str | None = None) -> Any:
        """Create an object. An idempotency key, by default a new one, makes it safe to repeat the request."""
        headers = {"Idempotency-Key": key or str(uuid4())}
        return checked_json(await self.request("POST", path, body=body, headers=headers, repeatable=True))

    async def patch(self, path: str, body: Any) -> Any:
        return checked_json(await self.request("PATCH", path, body=json_body(body), repeatable=True))

    async def delete(self, path: str, params: Params = None) -> None:
        await self.request("DELETE", path, params=params, repeatable=False)

    async def request(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool,
        params: Params = None,
        body: Body = dict,
        headers: Mapping[str, str] | None = None,
        away: float = AWAY_SECONDS,
    ) -> httpx2.Response:
        """Return a successful response. Raises Problem, Unreachable and TimedOut.

        `repeatable`: the request is idempotent, so it is sent again if its response is lost. `away`: seconds to retry
        while the server is unreachable.
        """
        pauses = Pauses(self, away=away)
        while True:
            try:
                response = await self.send(method, path, params=params, headers=headers or {}, body=body())
            except httpx2.TransportError as error:
                if not (repeatable or was_never_sent(error)):
                    unknown = "It is not known whether the server processed the request."
                    raise Unreachable(f"{unreachable(self.account.url, error)}\n{unknown}") from None
                await pauses.after_no_response(error)
                continue
            if response.is_success:
                return response
            problem = problem_of(response)
            if not may_repeat(problem, repeatable=repeatable):
                raise problem
            await pauses.after_problem(problem)

    async def send(
        self, method: str, path: str, *, params: Params, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> httpx2.Response:
        began = time.monotonic()
        options = {**body, "headers": {**headers, **body.get("headers", {})}, "params": params}
        request = self.http.build_request(method, self.account.url + path, timeout=self.timeout(), **options)
        response = await self.network.send(self.http, request)
        try:
            await self.network.read(response)
        finally:
            await self.network.close(response)
        log.debug(
            "%s %s %d in %.2f s %s", method, path, response.status_code, time.monotonic() - began, id_of(response)
        )
        return response

    @asynccontextmanager
    async def stream(
        self, path: str, *, read: float, params: Params = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """Stream a response, without retries. `read`: seconds that may pass without a byte.

        Raises httpx2.TransportError, and Problem for any status other than 200 and 204.
        """
        accepted = {"Accept": "*/*"} | dict(headers or {})
        request = self.http.build_request(
            "GET", self.account.url + path, params=params, headers=accepted, timeout=self.timeout(read)
        )
        response = await self.network.send(self.http, request)
        try:
            log.debug("GET %s %d %s", path, response.status_code, id_of(response))
            if not response.is_success:
                await self.read_some(response)
                raise problem_of(response)
            yield response
        finally:
            await self.network.close(response)

    async def body(self, path: str, params: Params = None) -> AsyncIterator[bytes]:
        """Yield the body of a path as it arrives. Raises Problem, and Unreachable if the connection breaks."""
        try:
            async with self.stream(path, params=params, read=SILENCE_SECONDS) as response:
                async for block in self.network.blocks(response):
                    yield block
        except httpx2.TransportError as error:
            raise unreachable(self.account.url, error) from None

    async def read_some(self, response: httpx2.Response) -> None:
        """Read the body of a streamed error response, unless it is too large or of unknown length."""
        with suppress(httpx2.TransportError):
            if int(response.headers.get("Content-Length", MAX_ERROR_BYTES)) < MAX_ERROR_BYTES:
                await self.network.read(response)

    async def pages(self, path: str, params: Params = None, *, limit: int | None = None) -> AsyncIterator[Any]:
        """Yield up to `limit` results of a paginated list. Of the URL `next`, only the cursor is used, not the host."""
        params = {"limit": min(limit or MAX_PER_PAGE, MAX_PER_PAGE), **given(**(params or {}))}
        left = float("inf") if limit is None else limit
        while left > 0:
            page = await self.get(path, params)
            for each in page["results"][: None if limit is None else int(left)]:
                yield each
            left -= len(page["results"])
            if not page["next"]:
                return
            params = {**params, "cursor": httpx2.URL(page["next"]).params["cursor"]}

    # ---- Time -------------------------------------------------------------------------------------------------------

    def timeout(self, read: float = ANSWER_SECONDS) -> httpx2.Timeout:
        return httpx2.Timeout(self.within(read), connect=self.within(CONNECT_SECONDS))

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def within(self, seconds: float) -> float:
        """Return the seconds, or the time until the deadline if that is shorter. Raises TimedOut."""
        if (left := self.left()) <= 0:
            raise TimedOut("The time limit is exceeded.")
        return min(seconds, max(left, 0.1))

    async def pause(self, seconds: float) -> None:
        """Wait. Raises TimedOut if the deadline passes."""
        await self.network.sleep(self.within(seconds))
        self.within(1)


class Pauses:
    """The backoff between the attempts of one request."""

    def __init__(self, api: Api, *, away: float) -> None:
        self.api = api
        self.away = api.patience if api.patience is not None else away
        self.busy = api.patience if api.patience is not None else max(away, BUSY_SECONDS)
        self.began = time.monotonic()
        self.next = FIRST_PAUSE_SECONDS

    async def after_no_response(self, error: httpx2.TransportError) -> None:
        """Wait before the next attempt, with backoff. Raises Unreachable if that takes too long."""
        if time.monotonic() - self.began + self.next > self.away:
            raise unreachable(self.api.account.url, error) from None
        if self.next == FIRST_PAUSE_SECONDS:
            log.info("%s does not respond (%s). Retrying …", self.api.account.url, reason(error))
        await self.api.pause(self.next)
        self.next = min(2 * self.next, LONGEST_PAUSE_SECONDS)

    async def after_problem(self, problem: Problem) -> None:
        """Wait for the time in Retry-After, if there is one. Raises the problem if that takes too long."""
        seconds = self.next if problem.retry_after is None else max(problem.retry_after, FIRST_PAUSE_SECONDS)
        if time.monotonic() - self.began + seconds > self.busy:
            raise problem
        log.info("Retrying in %.0f s: %s [%s]", seconds, problem.detail, problem.code)
        await self.api.pause(seconds)
        self.next = min(2 * self.next, LONGEST_PAUSE_SECONDS)


def given(**options: Any) -> dict[str, Any]:
    """Return the options that are not None. For the others, the server has defaults."""
    return {name: value for name, value in options.items() if value is not None}


def json_body(value: Any) -> Body:
    """Return a JSON body that can be sent repeatedly. Numbers from `exact_json` keep their digits."""
    content = exact_json.dumps(value).encode()
    return lambda: {"content": content, "headers": {"Content-Type": "application/json"}}


def proxy_options(url: str) -> dict[str, Any]:
    """Return HTTP client options for a server. For loopback addresses, proxies from the environment are ignored."""
    return {"trust_env": not is_loopback(httpx2.URL(url).host)}


def origin(url: str) -> str:
    """Return the scheme and the host of a URL, without its secret parts."""
    parsed = httpx2.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode()}"


# ---- Responses ------------------------------------------------------------------------------------------------------


def may_repeat(problem: Problem, *, repeatable: bool) -> bool:
    """Return whether a request may be repeated after an error.

    Rate limits apply before a request is processed. Other errors of a busy server may occur during processing.
    """
    if problem.code == "quota_exceeded":
        return False
    return problem.status == 429 or (repeatable and (problem.status in BUSY or problem.code == IN_FLIGHT))  # noqa: PLR2004


def was_never_sent(error: httpx2.TransportError) -> bool:
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)


def unreachable(url: str, error: httpx2.TransportError) -> Unreachable:
    return Unreachable(f"{url} cannot be reached: {reason(error)}.")


def reason(error: httpx2.TransportError) -> str:
    """Return the reason from the operating system, without the URL, which may be secret."""
    if isinstance(error, httpx2.TimeoutException):
        return "timed out"
    if isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError | httpx2.WriteError):
        return "connection lost"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error) if isinstance(error, httpx2.ConnectError) else type(error).__name__


def problem_of(response: httpx2.Response) -> Problem:
    document: Any = None
    with suppress(ValueError, httpx2.ResponseNotRead):
        document = response.json()
    if not isinstance(document, dict):
        document = {"status": response.status_code, "detail": f"The server returned status {response.status_code}."}
    where = str(httpx2.URL(response.headers["Location"]).copy_with(query=None)) if response.is_redirect else ""
    return Problem(document, status=response.status_code, retry_after=retry_after(response), redirect=where)


def retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or a date (RFC 9110, 10.2.3). None if invalid."""
    text = response.headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}", text):
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def id_of(response: httpx2.Response) -> str:
    return str(response.headers.get("X-Request-ID", ""))


def checked_json(response: httpx2.Response) -> Any:
    try:
        return exact_json.loads(response.content)
    except ValueError:
        raise InvalidResponse("The response is not JSON: this is not the address of a Sluice server.") from None
