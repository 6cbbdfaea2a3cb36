"""The local stack from the command line: `python -m config.dev.stack up|demo|env`."""

import argparse
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType

from config.dev.stack import environment, local, openid_provider
from config.dev.stack.process import StackError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    options = parser().parse_args()
    for number in STOP_SIGNALS:
        signal.signal(number, interrupt)
    try:
        return int(options.run(options))
    except StackError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt on the first signal and ignore later ones: each step of the shutdown has a time limit."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m config.dev.stack", description="The local stack.")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("up", help="start everything and keep it running until Ctrl-C")
    command.add_argument("--workers", type=int, default=2, metavar="N", help="processes that run exports (default 2)")
    command.add_argument("--root", type=Path, default=local.ROOT, metavar="PATH", help="data folder (default .local)")
    command.add_argument("--sso", action="store_true", help="with single sign-on by a local OpenID provider")
    command.set_defaults(run=up)
    command = commands.add_parser("demo", help="start a stack, run real exports and verify the results")
    command.set_defaults(run=demo)
    command = commands.add_parser("env", help="print the environment variables of the running stack")
    command.set_defaults(run=env)
    return parser


def up(options: argparse.Namespace) -> int:
    print("Starting Postgres, Valkey, SeaweedFS, and then Sluice …", flush=True)
    with local.running(options.root.resolve(), workers=options.workers, sso=options.sso) as stack:
        print(announcement(stack), flush=True)
        try:
            stack.watch(report)
        finally:
            report("Stopping …")
    return 0


def report(line: str) -> None:
    # The reader of a pipe may have closed it after the announcement; the stack continues without it.
    with suppress(BrokenPipeError):
        print(line, flush=True)


def announcement(stack: local.Stack) -> str:
    issuer = stack.variables.get("OIDC_ISSUER")
    users = ", ".join(openid_provider.USERS)
    sso = f"\n  single sign-on {issuer}   users {users}, with their names as passwords" if issuer else ""
    return f"""
Sluice is ready {stack.url}
  admin pages   {stack.url}/admin/   user {local.ADMIN}, password {stack.variables["ADMIN_PASSWORD"]}{sso}
  API token     {stack.variables["API_TOKEN"]}
  command line  sluice login {stack.url} --token-stdin <<< {stack.variables["API_TOKEN"]}
  variables     set -a; . {stack.servers.root / environment.FILE}
  logs          {stack.servers.root / "logs"}
Press Ctrl-C to stop.
"""


def demo(_options: argparse.Namespace) -> int:
    # Imported late: it needs more packages than `up`.
    return int(import_module("config.dev.demo").main())


def env(_options: argparse.Namespace) -> int:
    file = local.ROOT / environment.FILE
    if not file.exists():
        raise StackError("No stack runs in this folder. Start one with `make up`.")
    print(file.read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
