"""The participants of a soak test: changing datasets, three users with clients and webhooks, and an operator."""

import json
import time
import zlib
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from threading import Event

import psycopg

from config.dev.stack.postgres import SUPERUSER
from tests.chaos.document_invariants import lines
from tests.chaos.history.clients import Account, Client
from tests.chaos.history.operator import Operator
from tests.chaos.history.record import Record
from tests.chaos.history.source import TABLES, Clock
from tests.chaos.site import Site
from tests.integration.receiver import OK, answer, receiver

CLIENTS = 2  # of each user
EVENTS = ["export.succeeded", "export.failed", "export.cancelled"]


class Crowd:
    def __init__(self, site: Site, names: list[str], seed: str, record: Record, stack: ExitStack) -> None:
        self.site, self.record, self.stopped = site, record, Event()
        self.accounts = [Account(name, ("", "")) for name in names]
        self.operator = Operator(site.source, self.accounts, f"{seed}:operator", record, self.stopped)
        self.clients = [
            Client(account, f"{seed}:{account.name}:{number}", self.url, record, self.stopped)
            for account in self.accounts
            for number in range(CLIENTS)
        ]
        site.source.run(TABLES)
        with psycopg.connect(site.servers.postgres.url(SUPERUSER), autocommit=True) as admin:
            admin.execute("GRANT pg_monitor TO source")  # the rude function switches to this role
        for dataset in self.operator.schemas:
            self.operator.register(dataset)
        for client in self.clients[::CLIENTS]:
            self.operator.new_token(client.account)
            self.subscribe(client, stack)
        self.clock = Clock(site.source, record)

    def url(self) -> str:
        assert self.site.web
        return self.site.web.url

    def subscribe(self, client: Client, stack: ExitStack) -> None:
        """Create a webhook whose receiver records requests, and rejects the first attempt of some deliveries."""
        inbox = stack.enter_context(receiver())
        self.site.receivers.append(inbox)
        hook = client.send("hook", "POST", "/exports/webhooks", request={"url": inbox.url, "events": EVENTS})["body"]

        def respond(to: BaseHTTPRequestHandler) -> None:
            began, message_id = time.monotonic(), to.headers["webhook-id"]
            attempts = [each for each in inbox.received if each.id == message_id]
            text, headers = attempts[-1].body.decode(), attempts[-1].headers
            status = 500 if len(attempts) == 1 and zlib.crc32(message_id.encode()) % 8 == 0 else 204
            body = json.loads(text)
            self.record.add(
                "webhook", began, endpoint=hook["id"], id=message_id, timestamp=headers["webhook-timestamp"],
                signature=headers["webhook-signature"], text=text, body=body, job=body["data"]["jobId"], status=status,
            )  # fmt: skip
            (OK if status == 204 else answer(status))(to)

        inbox.then = respond

    def start(self) -> None:
        for thread in (self.operator.thread, *(client.thread for client in self.clients)):
            thread.start()

    def stop(self) -> None:
        """Let all participants finish their current actions, and add the deliberate changes to `site.allowed`."""
        self.stopped.set()
        self.operator.thread.join()
        for client in self.clients:
            client.stop()
        self.clock.stop()
        self.site.allowed.absences += self.operator.inactive
        self.site.allowed.retried |= {job for client in self.clients for job in client.retried}

    def audit(self) -> None:
        """Record the final state that each user sees, and how many chunks of each job were exported again."""
        for line in lines(self.site):
            if line.get("action") == "files_gone":
                self.record.add("log", time.monotonic(), job=line["job_id"], redone=line["redone"])
        self.record.is_final = True
        for client in self.clients[::CLIENTS]:
            client.audit()
        for client in self.clients:
            client.http.close()
        self.record.close()
