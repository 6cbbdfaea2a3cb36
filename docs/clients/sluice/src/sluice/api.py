"""HTTP: one request after the other, again where that is safe, and its answer or a Trouble."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

from sluice import __version__
from sluice.errors import Exit, Problem, TimedOut, Trouble, Unreachable
from sluice.settings import SIGN_IN, Account, is_loopback

AGENT = f"sluice-cli/{__version__}"
CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 60.0
# How long to go on with a server that does not answer, and with one that asks to come back later.
AWAY_SECONDS, BUSY_SECONDS = 5.0, 60.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0
MOST_OF_AN_ERROR = 1_000_000  # bytes
# The server has done nothing: its doors are closed for now, or another request has the same key.
BUSY = {429, 502, 503, 504}
IN_FLIGHT = "idempotency_in_flight"

Body = Callable[[], Mapping[str, Any]]  # arguments for httpx2, made anew for each attempt
Params = Mapping[str, Any] | None


class Api:
    """The server of an account.

    `patience`: seconds to go on in trouble, instead of what fits each request. `deadline`, on time.monotonic's clock,
    is where TimedOut is raised.
    """

    def __init__(
        self,
        account: Account,
        *,
        say: Callable[[str], None],
        debug: Callable[[str], None],
        patience: float | None = None,
    ) -> None:
        self.account, self.say, self.debug, self.patience = account, say, debug, patience
        self.deadline: float | None = None
        headers = {"Authorization": f"Bearer {account.token}", "User-Agent": AGENT, "Accept": "application/json"}
        # Redirects are not followed: the token is for this server alone.
        self.client = httpx2.Client(headers=headers, follow_redirects=False, **reach(account.url))

    # ---- Requests ---------------------------------------------------------------------------------------------------

    def get(self, path: str, params: Params = None, *, away: float = AWAY_SECONDS) -> Any:
        return checked_json(self.ask("GET", path, params=params, repeatable=True, away=away))

    def post(self, path: str, body: Any = None, *, repeatable: bool = False) -> Any:
        return checked_json(self.ask("POST", path, body=lambda: {"json": body or {}}, repeatable=repeatable))

    def ask(
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
        """Return the answer, if it is a good one. Raises Problem, Unreachable and TimedOut.

        `repeatable`: doing it twice does no harm, so that it is sent again when its answer was lost.
        """
        pauses = Pauses(self, away=away)
        while True:
            try:
                response = self.send(method, path, params=params, headers=headers or {}, body=body())
            except httpx2.TransportError as error:
                if not (repeatable or was_never_sent(error)):
                    raise lost(self.account.url, error, "It is not known whether the server did it.") from None
                pauses.after_silence(error)
                continue
            if response.is_success:
                return response
            problem = problem_of(response)
            if not may_repeat(problem, repeatable=repeatable):
                raise problem
            pauses.after_refusal(problem)

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
    def stream(self, path: str, *, read: float, headers: Mapping[str, str] | None = None) -> Iterator[httpx2.Response]:
        """Give the answer while it comes: one attempt. `read`: seconds that may pass without a byte of it.

        Raises httpx2.TransportError, and Problem for any answer but 200 and 204.
        """
        timeout = httpx2.Timeout(self.within(read), connect=self.within(CONNECT_SECONDS))
        url = self.account.url + path
        with self.client.stream("GET", url, headers={"Accept": "*/*"} | dict(headers or {}), timeout=timeout) as answer:
            self.debug(f"GET {path} {answer.status_code} {id_of(answer)}")
            if not answer.is_success:
                read_some(answer)
                raise problem_of(answer)
            yield answer

    def pages(self, path: str, params: dict[str, Any], *, limit: int) -> Iterator[dict[str, Any]]:
        """Yield the results of a list over its pages, `limit` at most. Of `next` only the cursor is taken."""
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
        """Return the seconds, or what is left of the time if that is less. Raises TimedOut."""
        if (left := self.left()) <= 0:
            raise TimedOut
        return min(seconds, max(left, 0.1))

    def pause(self, seconds: float) -> None:
        """Wait. Raises TimedOut, when that is earlier."""
        time.sleep(self.within(seconds))
        self.within(1)


class Pauses:
    """Between the attempts of one request."""

    def __init__(self, api: Api, *, away: float) -> None:
        self.api = api
        self.away = api.patience if api.patience is not None else away
        self.busy = api.patience if api.patience is not None else max(away, BUSY_SECONDS)
        self.began = time.monotonic()
        self.next = FIRST_PAUSE_SECONDS

    def after_silence(self, error: httpx2.TransportError) -> None:
        """Wait, each time longer. Raises Unreachable when it has been long enough."""
        if time.monotonic() - self.began + self.next > self.away:
            raise lost(self.api.account.url, error) from None
        if self.next == FIRST_PAUSE_SECONDS:
            self.api.say(f"{self.api.account.url} does not answer ({reason(error)}); trying again …")
        self.api.pause(self.next)
        self.next = min(2 * self.next, LONGEST_PAUSE_SECONDS)

    def after_refusal(self, problem: Problem) -> None:
        """Wait as long as the server asks for. Raises its answer when that is too long."""
        seconds = self.next if problem.retry_after is None else max(problem.retry_after, FIRST_PAUSE_SECONDS)
        if time.monotonic() - self.began + seconds > self.busy:
            raise problem
        self.api.say(f"The server asks to come back in {seconds:.0f} s: {problem.detail} [{problem.name}]")
        self.api.pause(seconds)
        self.next = min(2 * self.next, LONGEST_PAUSE_SECONDS)


def reach(url: str) -> dict[str, Any]:
    """Return how to get to a server: proxies of the environment lead nowhere for this machine itself."""
    return {"trust_env": not is_loopback(httpx2.URL(url).host)}


# ---- What answers mean ----------------------------------------------------------------------------------------------


def may_repeat(problem: Problem, *, repeatable: bool) -> bool:
    """Rates are counted before anything is done; other refusals of a busy server may have come halfway."""
    if problem.name == "quota_exceeded":
        return False
    return problem.status == 429 or (repeatable and (problem.status in BUSY or problem.name == IN_FLIGHT))  # noqa: PLR2004


def was_never_sent(error: httpx2.TransportError) -> bool:
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)


def lost(url: str, error: httpx2.TransportError, *more: str) -> Unreachable:
    return Unreachable(f"{url} cannot be reached: {reason(error)}.", *more)


def reason(error: httpx2.TransportError) -> str:
    """Return why, in the words of the system; never the URL, which may be secret."""
    if isinstance(error, httpx2.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError | httpx2.WriteError):
        return "the connection broke"
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
        document = {"status": response.status_code, "detail": f"The server answered {response.status_code}."}
    problem = Problem(document, status=response.status_code, retry_after=retry_after(response))
    if response.is_redirect:
        where = httpx2.URL(response.headers["Location"]).copy_with(query=None)
        problem.advice = (f"It is elsewhere: {where}. The token is not sent there; sign in at the right address.",)
    elif problem.code == Exit.FORBIDDEN and response.status_code == 401:  # noqa: PLR2004
        problem.advice = (SIGN_IN,)
    elif problem.name == "quota_exceeded":
        problem.advice = ("What is left, and when there is more: sluice limits",)
    return problem


def read_some(response: httpx2.Response) -> None:
    """Read the body of an error: a stream's is not read by itself, and a wrong one may be without end."""
    with suppress(httpx2.TransportError):
        if int(response.headers.get("Content-Length", MOST_OF_AN_ERROR)) < MOST_OF_AN_ERROR:
            response.read()


def retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds of a Retry-After: a number of them or a date (RFC 9110, 10.2.3); None without sense in it."""
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
        return response.json()
    except json.JSONDecodeError:
        raise Trouble("The answer is no JSON: this is not the address of a Sluice server.") from None
