"""The blocking client, `Client`, and the client for asyncio, `AsyncClient`."""

from collections.abc import AsyncIterator
from typing import Any, Self

import httpx2

from sluice import account
from sluice.account import Account
from sluice.api import Api, Params
from sluice.blocking import Methods, iterator, method, run
from sluice.documents import AsyncBatches, AsyncDocuments, Batches, Documents
from sluice.evaluations import AsyncEvaluations, AsyncSamples, Evaluations, Samples
from sluice.exports import AsyncExports, Exports
from sluice.network import Asynchronous, Blocking, Network
from sluice.rules import AsyncRules, Rules
from sluice.schedules import AsyncSchedules, Schedules
from sluice.tokens import AsyncTokens, Tokens
from sluice.webhooks import AsyncWebhooks, Webhooks


def account_of(url: str | None, token: str | None, *, insecure_http: bool) -> Account:
    """Return the account of the arguments or, without arguments, of the environment or of `sluice login`."""
    if url is None and token is None:
        return account.load()
    checked = account.checked_url(url or "", insecure=insecure_http)
    return Account(url=checked, token=account.checked_token(token or ""))


class AsyncClient:
    """A signed-in user of a Sluice server, for asyncio. It has the methods of `Client`, as coroutines.

    Use it as a context manager, or close it. Several tasks can share it.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        insecure_http: bool = False,
        patience: float | None = None,
        network: Network | None = None,
    ) -> None:
        signed_in = account_of(url, token, insecure_http=insecure_http)
        self.api = Api(signed_in, network or Asynchronous(), patience=patience)
        self.exports = AsyncExports(self.api)
        self.schedules = AsyncSchedules(self.api)
        self.webhooks = AsyncWebhooks(self.api)
        self.rules = AsyncRules(self.api)
        self.documents = AsyncDocuments(self.api, self.rules)
        self.batches = AsyncBatches(self.api, self.rules)
        self.samples = AsyncSamples(self.api, self.rules)
        self.evaluations = AsyncEvaluations(self.api, self.rules)
        self.tokens = AsyncTokens(self.api)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.api.network.close(self.api.http)

    # ---- Requests to any path ---------------------------------------------------------------------------------------

    async def get(self, path: str, params: Params = None) -> Any:
        """Return the JSON of a path. Numbers keep their digits."""
        return await self.api.get(path, params)

    async def post(self, path: str, body: Any = None, *, repeatable: bool = False) -> Any:
        """Return the JSON response. `repeatable`: the request is idempotent: repeat it if its response is lost."""
        return await self.api.post(path, body, repeatable=repeatable)

    async def delete(self, path: str) -> None:
        await self.api.delete(path)

    async def pages(self, path: str, params: Params = None, *, limit: int | None = None) -> AsyncIterator[Any]:
        """Yield the results of a paginated list."""
        async for each in self.api.pages(path, params, limit=limit):
            yield each

    async def request(self, method: str, path: str, /, **options: Any) -> httpx2.Response:
        """Return a successful response. `options`: those of `Api.request`."""
        return await self.api.request(method, path, **options)

    async def stream(self, path: str, params: Params = None) -> AsyncIterator[bytes]:
        """Yield the body of a path as it arrives."""
        async for block in self.api.body(path, params):
            yield block


class Client(Methods):
    """A signed-in user of a Sluice server.

    The default of `url` and `token` is `SLUICE_URL` and `SLUICE_TOKEN`, or the account of `sluice login`. `patience`:
    seconds to retry a request while the server is unreachable or busy. `insecure_http`: allow http:// to another
    machine, which sends the token unencrypted. Raises NotSignedIn and InvalidUrl. Every method raises Problem,
    Unreachable and InvalidResponse. Use it as a context manager, or close it.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        insecure_http: bool = False,
        patience: float | None = None,
    ) -> None:
        inner = AsyncClient(url, token, insecure_http=insecure_http, patience=patience, network=Blocking())
        super().__init__(inner)
        self.account = inner.api.account
        self.exports = Exports(inner.exports)
        self.schedules = Schedules(inner.schedules)
        self.webhooks = Webhooks(inner.webhooks)
        self.rules = Rules(inner.rules)
        self.documents = Documents(inner.documents)
        self.batches = Batches(inner.batches)
        self.samples = Samples(inner.samples)
        self.evaluations = Evaluations(inner.evaluations)
        self.tokens = Tokens(inner.tokens)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        run(self.coroutines.close())

    close = method(AsyncClient.close)
    get = method(AsyncClient.get)
    post = method(AsyncClient.post)
    delete = method(AsyncClient.delete)
    pages = iterator(AsyncClient.pages)
    request = method(AsyncClient.request)
    stream = iterator(AsyncClient.stream)
