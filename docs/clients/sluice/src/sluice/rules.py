"""Rules that convert documents."""

from collections.abc import AsyncIterator
from typing import Any

from sluice.api import Api, checked_json, json_body
from sluice.blocking import Methods, iterator, method
from sluice.errors import RuleNotFound
from sluice.models import Rule
from sluice.uploading import ROOT

Which = Rule | int | str


class AsyncRules:
    """The rules of a user and of the system. Methods take a rule as an object, name, or id."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def id_of(self, rule: Which | None) -> int | None:
        """Return the id of a rule. Raises RuleNotFound if no rule has the name, or if several have it."""
        if rule is None or isinstance(rule, int):
            return rule
        if isinstance(rule, Rule):
            return rule.id
        if rule.isascii() and rule.isdecimal():
            return int(rule)
        found = [each.id async for each in self.list() if each.name.casefold() == rule.casefold()]
        if len(found) != 1:
            raise RuleNotFound(rule, found)
        return found[0]

    async def path_of(self, rule: Which) -> str:
        return f"{ROOT}/rules/{await self.id_of(rule)}"

    async def list(self, *, limit: int | None = None) -> AsyncIterator[Rule]:
        """Yield the rules of the user and of the system."""
        async for each in self.api.pages(f"{ROOT}/rules", limit=limit):
            yield Rule.of(each)

    async def get(self, rule: Which) -> Rule:
        return Rule.of(await self.api.get(await self.path_of(rule)))

    async def create(self, name: str, /, **fields: Any) -> Rule:
        """Create a rule: `json_schema`, `system_prompt`, `postprocess_mode`, and the other fields of the API."""
        return Rule.of(await self.api.post(f"{ROOT}/rules", {"name": name, **fields}))

    async def update(self, rule: Which, /, **fields: Any) -> Rule:
        """Change fields of a rule. Submitted documents keep their version."""
        return Rule.of(await self.api.patch(await self.path_of(rule), fields))

    async def replace(self, rule: Which, /, **fields: Any) -> Rule:
        """Replace a rule. Omitted fields get their defaults."""
        path, body = await self.path_of(rule), json_body(fields)
        return Rule.of(checked_json(await self.api.request("PUT", path, body=body, repeatable=True)))

    async def delete(self, rule: Which) -> None:
        """Delete a rule. Submitted documents still use it."""
        await self.api.request("DELETE", await self.path_of(rule), repeatable=True)


class Rules(Methods):
    """The rules of a user and of the system. Methods take a rule as an object, name, or id."""

    id_of = method(AsyncRules.id_of)
    list = iterator(AsyncRules.list)
    get = method(AsyncRules.get)
    create = method(AsyncRules.create)
    update = method(AsyncRules.update)
    replace = method(AsyncRules.replace)
    delete = method(AsyncRules.delete)
