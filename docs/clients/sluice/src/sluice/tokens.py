"""API tokens of the user."""

from collections.abc import AsyncIterator, Iterable

from sluice.api import Api, given
from sluice.blocking import Methods, iterator, method
from sluice.models import Token

PATH = "/tokens"


class AsyncTokens:
    """The API tokens of a user. Methods take a token as an object or its id."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def create(
        self, name: str, *, scopes: Iterable[str] | None = None, expires_in_days: int | None = None
    ) -> Token:
        """Create a token, by default with all scopes. Only this response contains its `token`."""
        fields = given(scopes=None if scopes is None else list(scopes), expiresInDays=expires_in_days)
        return Token.of(await self.api.post(PATH, {"name": name, **fields}))

    async def list(self) -> AsyncIterator[Token]:
        for each in (await self.api.get(PATH))["results"]:
            yield Token.of(each)

    async def delete(self, token: Token | str) -> None:
        """Revoke a token."""
        await self.api.request("DELETE", f"{PATH}/{getattr(token, 'id', token)}", repeatable=True)


class Tokens(Methods):
    """The API tokens of a user. Methods take a token as an object or its id."""

    create = method(AsyncTokens.create)
    list = iterator(AsyncTokens.list)
    delete = method(AsyncTokens.delete)
