"""`python -m config.dev.openid_provider PORT`: create missing rows, then serve."""

import os
import sys
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application

from config.dev.stack.openid_provider import CLIENT_ID, USERS
from config.dev.stack.ports import LOOPBACK


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Handler(WSGIRequestHandler):
    def address_string(self) -> str:
        return str(self.client_address[0])  # without a reverse DNS lookup


def main(port: int) -> None:
    django.setup()
    call_command("migrate", verbosity=0)
    create_rows()
    with make_server(LOOPBACK, port, get_wsgi_application(), Server, Handler) as server:
        server.serve_forever()


def create_rows() -> None:
    from django.contrib.auth.models import Group, User
    from oauth2_provider.models import Application

    application: Any = Application
    application.objects.get_or_create(
        client_id=CLIENT_ID,
        defaults={
            "client_secret": os.environ["CLIENT_SECRET"],
            "client_type": "confidential",
            "authorization_grant_type": "authorization-code",
            "redirect_uris": f"http://{LOOPBACK}/",
            "algorithm": "RS256",
            "skip_authorization": True,
        },
    )
    for name, groups in USERS.items():
        if not User.objects.filter(username=name).exists():
            user = User.objects.create_user(name, f"{name}@example.org", name)
            user.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])


if __name__ == "__main__":
    main(int(sys.argv[1]))
