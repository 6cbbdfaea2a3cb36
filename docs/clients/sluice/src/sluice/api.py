"""HTTP requests to the server, with retries where they are safe."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

from sluice import __version__, exact_json
from sluice.errors import CliError, Exit, Problem, TimedOut, Unreachable
from sluice.settings import SIGN_IN, Account, is_loopback

AGENT = f"sluice-cli/{__version__}"
CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 60.0
# How long to retry while the server does not respond, and while it asks to retry later.
AWAY_SECONDS, BUSY_SECONDS = 5.0, 60.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0
MOST_OF_AN_ERROR = 1_000_000  # bytes
# The server has not processed the request: it is busy, or another request has the same idempotency key.
BUSY = {429, 502, 503, 504}
IN_FLIGHT = "idempotency_in_flight"

Body = Callable[[], Mapping[str, Any]]  # arguments for httpx2, created for each attempt
Params = Mapping[str, Any] | None


class Api:
    """The server of an account.

    `patience`: seconds to retry, instead of the default of each request. After `deadline` (time.monotonic), TimedOut is
    raised.
    """

    def __init__(
        self,
        account: Account,
        *,
        info: Callable[[str], None],
        debug: Callable[[str], None],
        patience: float | None = None,
    ) -> None:
        self.account, self.info, self.debug, self.patience = account, info, debug, patience
        self.deadline: float | None = None
        headers = {"Authorization": f"Bearer {account.token}", "User-Agent": AGENT, "Accept": "application/json"}
        # Redirects are not followed: the token is for this server only.
        self.client = httpx2.Client(headers=headers, follow_redirects=False, **reach(account.url))

    # ---- Requests ---------------------------------------------------------------------------------------------------

    def get(self, path: str, params: Params = None, *, away: float = AWAY_SECONDS) -> Any:
        return checked_json(self.request("GET", path, params=params, repeatable=True, away=away))

    def post(self, path: str, body: Any = None, *, repeatable: bool = False) -> Any:
        return checked_json(self.request("POST", path, body=lambda: {"json": body or {}}, repeatable=repeatable))

    def delete(self, path: str, params: Params = None) -> None:
        self.request("DELETE", path, params=params, repeatable=False)

    def request(
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

        `repeatable`: the request is idempotent and is sent again if its response is lost.
        """
        pauses = Pauses(self, away=away)
        while True:
            try:
                response = self.send(method, path, params=params, headers=headers or {}, body=body())
            except httpx2.TransportError as error:
                if not (repeatable or was_never_sent(error)):
                    raise lost(
                        self.account.url, error, "It is not known whether the server processed the request."
                    ) from None
                pauses.after_no_response(error)
                continue
            if response.is_success:
                return response
            problem = problem_of(response)
            if not may_repeat(problem, repeatable=repeatable):
                raise problem
            pauses.after_problem(problem)

    def send(
        self, method: str, path: str, *, params: Params, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> httpx2.Response:
        began = time.monotonic()
        timeout = httpx2.Timeout(self.within(ANSWER_SECONDS), connect=self.within(CONNECT_SECONDS))
        options = {**body, "headers": {**headers, **body.get("headers", {})}, "params": params}
        response = self.client.request(method, self.account.url + path, timeout=timeout, **options)
        self.debug(f"{method} {path} {response.status_code} in {time.monotonic() - began:.2f} s {id_of(response)}")
        return response

    @contextmanager
    def stream(
        self, path: str, *, read: float, params: Params = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx2.Response]:
        """Stream a response, without retries. `read`: seconds that may pass without a byte.

        Raises httpx2.TransportError, and Problem for any status other than 200 and 204.
        """
        timeout = httpx2.Timeout(self.within(read), connect=self.within(CONNECT_SECONDS))
        url = self.account.url + path
        accepted = {"Accept": "*/*"} | dict(headers or {})
        with self.client.stream("GET", url, params=params, headers=accepted, timeout=timeout) as response:
            self.debug(f"GET {path} {response.status_code} {id_of(response)}")
            if not response.is_success:
                read_some(response)
                raise problem_of(response)
            yield response

    def pages(self, path: str, params: dict[str, Any], *, limit: int) -> Iterator[dict[str, Any]]:
        """Yield up to `limit` results of a list over its pages. Only the cursor of `next` is used, not its host."""
        while limit > 0:
            page = self.get(path, params)
            yield from page["results"][:limit]
            limit -= len(page["results"])
            if not page["next"]:
                return
            params = {**params, "cursor": httpx2.URL(page["next"]).params["cursor"]}

    # ---- Time -------------------------------------------------------------------------------------------------------

    def left(self) -> float:
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    def within(self, seconds: float) -> float:
        """Return the seconds, or the time until the deadline if that is shorter. Raises TimedOut."""
        if (left := self.left()) <= 0:
            raise TimedOut
        return min(seconds, max(left, 0.1))

    def pause(self, seconds: float) -> None:
        """Wait. Raises TimedOut if the deadline is earlier."""
        time.sleep(self.within(seconds))
        self.within(1)


class Pauses:
    """The backoff between the attempts of one request."""

    def __init__(self, api: Api, *, away: float) -> None:
        self.api = api
        self.away = api.patience if api.patience is not None else away
        self.busy = api.patience if api.patience is not None else max(away, BUSY_SECONDS)
        self.began = time.monotonic()
        self.next = FIRST_PAUSE_SECONDS

    def after_no_response(self, error: httpx2.TransportError) -> None:
        """Wait before the next attempt, with backoff. Raises Unreachable after too long a time."""
        if time.monotonic() - self.began + self.next > self.away:
            raise lost(self.api.account.url, error) from None
        if self.next == FIRST_PAUSE_SECONDS:
            self.api.info(f"{self.api.account.url} does not respond ({reason(error)}). Retrying …")
        self.api.pause(self.next)
        self.next = min(2 * self.next, LONGEST_PAUSE_SECONDS)

    def after_problem(self, problem: Problem) -> None:
        """Wait as long as the server asks for. Raises the problem if that is too long."""
        seconds = self.next if problem.retry_after is None else max(problem.retry_after, FIRST_PAUSE_SECONDS)
        if time.monotonic() - self.began + seconds > self.busy:
            raise problem
        self.api.info(f"Retrying in {seconds:.0f} s: {problem.detail} [{problem.name}]")
        self.api.pause(seconds)
        self.next = min(2 * self.next, LONGEST_PAUSE_SECONDS)


def reach(url: str) -> dict[str, Any]:
    """Return client options for a server. Proxies of the environment are ignored for loopback addresses."""
    return {"trust_env": not is_loopback(httpx2.URL(url).host)}


# ---- Responses ------------------------------------------------------------------------------------------------------


def may_repeat(problem: Problem, *, repeatable: bool) -> bool:
    """Rate limits apply before a request is processed; other errors of a busy server may occur midway."""
    if problem.name == "quota_exceeded":
        return False
    return problem.status == 429 or (repeatable and (problem.status in BUSY or problem.name == IN_FLIGHT))  # noqa: PLR2004


def was_never_sent(error: httpx2.TransportError) -> bool:
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)


def lost(url: str, error: httpx2.TransportError, *more: str) -> Unreachable:
    return Unreachable(f"{url} cannot be reached: {reason(error)}.", *more)


def reason(error: httpx2.TransportError) -> str:
    """Return the reason in the system's words, never the URL, which may be secret."""
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
    problem = Problem(document, status=response.status_code, retry_after=retry_after(response))
    if response.is_redirect:
        where = httpx2.URL(response.headers["Location"]).copy_with(query=None)
        problem.advice = (f"The server redirects to {where}. The token is not sent there; sign in with the right URL.",)
    elif problem.code == Exit.FORBIDDEN and response.status_code == 401:  # noqa: PLR2004
        problem.advice = (SIGN_IN,)
    elif problem.name == "quota_exceeded":
        problem.advice = ("Show the quota and when it resets with: sluice limits",)
    return problem


def read_some(response: httpx2.Response) -> None:
    """Read the body of an error response to a stream, unless it is too large or endless."""
    with suppress(httpx2.TransportError):
        if int(response.headers.get("Content-Length", MOST_OF_AN_ERROR)) < MOST_OF_AN_ERROR:
            response.read()


def retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds of a Retry-After: a number of them or a date (RFC 9110, 10.2.3); None if invalid."""
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
        raise CliError("The response is not JSON: this is not the address of a Sluice server.") from None
