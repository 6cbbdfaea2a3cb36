"""The operator of a soak test: registers datasets again, revokes tokens, and deactivates a user."""

import time
from collections.abc import Callable
from io import StringIO
from random import Random
from threading import Event, Thread
from typing import Any

import psycopg
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection
from knox.models import AuthToken

from tests.chaos.history.clients import LIMIT, Account
from tests.chaos.history.record import Line, Record
from tests.chaos.history.source import FUNCTIONS, create_function
from tests.chaos.source import Source

PAUSE = (2.0, 6.0)  # seconds between two actions


class Operator:
    def __init__(self, source: Source, accounts: list[Account], seed: str, record: Record, stopped: Event) -> None:
        self.source, self.accounts, self.record, self.stopped = source, accounts, record, stopped
        self.random = Random(seed)
        self.schemas = dict.fromkeys(FUNCTIONS, 0)
        self.digests: dict[str, str] = {}  # of tokens, by label
        self.inactive: list[tuple[str, float, float]] = []  # username, and wall-clock times of both actions
        self.thread = Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while not self.stopped.wait(self.random.uniform(*PAUSE)):
            self.random.choice([self.register_next, self.revoke, self.revoke, self.deactivate])()
        connection.close()

    def repeat_until_done(self, action: Callable[[], Any], what: str, **facts: Any) -> Line:
        """Repeat an action until the database executes it, and record it."""
        began = time.monotonic()
        while True:
            try:
                action()
            except (DatabaseError, psycopg.Error, CommandError):
                if time.monotonic() > began + LIMIT:
                    raise
                connection.close()
                time.sleep(0.2)
            else:
                return self.record.add("action", began, what=what, **facts)

    def register_next(self) -> None:
        self.register(self.random.choice(sorted(FUNCTIONS)))

    def register(self, dataset: str) -> None:
        """Register a dataset with its next schema version, whose function returns other columns."""
        self.schemas[dataset] += 1
        schema = self.schemas[dataset]

        def register() -> None:
            call_command(
                "register_dataset", dataset, function=create_function(self.source, dataset, schema), base_path=dataset,
                schema_version=schema, allow_writes=dataset == "rude", formats="csv,jsonl", verbosity=0,
                stdout=StringIO(),
            )  # fmt: skip

        self.repeat_until_done(register, "register", dataset=dataset, schema=schema)

    def new_token(self, account: Account) -> None:
        """Create a new token, which the user's clients use from now on."""
        row, secret = AuthToken.objects.create(User.objects.get(username=account.name))
        label = f"{account.name}{len(self.digests)}"
        self.digests[label] = row.digest
        account.token = (label, secret)

    def revoke(self) -> None:
        """Replace a user's token, and revoke the previous one, which clients still try sometimes."""
        account = self.random.choice(self.accounts)
        old = account.token
        self.repeat_until_done(lambda: self.new_token(account), "token")
        self.repeat_until_done(AuthToken.objects.filter(digest=self.digests[old[0]]).delete, "revoke", token=old[0])
        account.old_tokens.append(old)

    def deactivate(self) -> None:
        """Deactivate the last user for some seconds, sometimes for longer than a stream may continue."""
        name = self.accounts[-1].name
        user = User.objects.filter(username=name)
        since = time.time()
        self.repeat_until_done(lambda: user.update(is_active=False), "deactivate", user=name)
        self.stopped.wait(self.random.choice([3, 6, 20]))
        self.repeat_until_done(lambda: user.update(is_active=True), "activate", user=name)
        self.inactive.append((name, since, time.time()))
