"""Webhooks: signed requests to a URL when an export, a document, or a batch ends."""

from collections.abc import AsyncIterator, Iterable
from uuid import UUID

from sluice.api import Api
from sluice.blocking import Methods, iterator, method
from sluice.models import Webhook

PATH = "/webhooks"
Which = Webhook | UUID | str


def path_of(webhook: Which) -> str:
    return f"{PATH}/{webhook.id if isinstance(webhook, Webhook) else webhook}"


class AsyncWebhooks:
    """The webhooks of a user. Methods take a webhook as an object or its id."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def create(self, url: str, events: Iterable[str]) -> Webhook:
        """Create a webhook. Only this response contains its `secret`, which verifies signatures."""
        return Webhook.of(await self.api.post(PATH, {"url": url, "events": list(events)}))

    async def get(self, webhook: Which) -> Webhook:
        return Webhook.of(await self.api.get(path_of(webhook)))

    async def list(self, *, limit: int | None = None) -> AsyncIterator[Webhook]:
        """Yield webhooks, newest first."""
        async for each in self.api.pages(PATH, limit=limit):
            yield Webhook.of(each)

    async def test(self, webhook: Which) -> None:
        """Send an event of the type `webhook.test`."""
        await self.api.post(f"{path_of(webhook)}/test")

    async def delete(self, webhook: Which) -> None:
        await self.api.request("DELETE", path_of(webhook), repeatable=True)


class Webhooks(Methods):
    """The webhooks of a user. Methods take a webhook as an object or its id."""

    create = method(AsyncWebhooks.create)
    get = method(AsyncWebhooks.get)
    list = iterator(AsyncWebhooks.list)
    test = method(AsyncWebhooks.test)
    delete = method(AsyncWebhooks.delete)
