"""Entries of the audit log for the commands of manage.py that can change or disclose data."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from getpass import getuser
from typing import Any

import structlog
from django.core.management import ManagementUtility
from django.core.management.base import BaseCommand

log = structlog.get_logger(__name__)

ALL_ARGUMENTS = 100
# The recorded commands, each with the number of leading arguments that identify objects. Other arguments, and all
# options, are not recorded.
RECORDED = {
    "changepassword": 1,
    "clearsessions": 0,
    "createsuperuser": 0,
    "dbshell": 0,
    "dumpdata": 0,
    "flush": 0,
    "grant_dataset": 2,
    "issue_token": 1,
    "load_rules": 0,
    "loaddata": 0,
    "migrate": 2,
    "reconcile": 0,
    "register_dataset": 1,
    "remove_stale_contenttypes": 0,
    "repair": ALL_ARGUMENTS,
    "reset_second_factors": 1,
    "shell": 0,
    "trim_audit": 0,
}
INTERACTIVE = ("dbshell", "shell")  # recorded at their start: they may run for days, and end with the terminal
HELP = {"-h", "--help"}


class Commands(ManagementUtility):
    """Django's command line, with audit entries.

    An entry is written in the transaction of the change if there is one, and otherwise when the command ends. The entry
    of an interactive command is written at its start.
    """

    def fetch_command(self, subcommand: str) -> BaseCommand:
        command = super().fetch_command(subcommand)
        if subcommand in RECORDED:
            run = partial(recorded, subcommand, command.run_from_argv)
            setattr(command, "run_from_argv", run)  # noqa: B010 - mypy refuses the assignment to a method
        return command


def recorded(name: str, run: Callable[[list[str]], None], arguments: list[str]) -> None:
    """Run a command, and write its audit entry."""
    from config.platform.http import audit  # not at the top: models cannot be imported before Django has loaded apps
    from config.platform.models import AuditEntry

    with audit.pending(audit.Pending(lambda: fields_of(name, arguments[2:]))) as entry:
        outcome = AuditEntry.Outcome.FAILED
        # Arguments after `--` are passed to the database client, whose -h is a host.
        own = arguments[: arguments.index("--")] if "--" in arguments else arguments
        if name in INTERACTIVE and not HELP & {*own}:
            finish(entry, name, AuditEntry.Outcome.SUCCESS)
            entry.is_written = True
        try:
            run(arguments)
            outcome = AuditEntry.Outcome.SUCCESS
        except SystemExit as end:
            if not end.code:  # --help
                entry.is_written = True
            raise
        finally:
            if not entry.is_written:
                finish(entry, name, outcome)


def finish(entry: Any, name: str, outcome: str) -> None:
    """Write the entry. If the database is unavailable or not migrated, log the command instead."""
    from django.db import Error, connections

    from config.platform.observability import logs

    try:
        entry.write(outcome=outcome)
    except Error as error:
        log.exception("audit_entry_not_written", error=logs.describe(error), verb=name, outcome=outcome)
        sys.stderr.write(f"{name} is not in the audit log: the database refused the entry.\n")
    finally:
        connections.close_all()


def fields_of(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    return {
        "via": "command",
        "account": account(),
        "action": name,
        "object_ids": [f"argument={each}"[:300] for each in leading(arguments)[: RECORDED[name]]],
    }


def leading(arguments: Sequence[str]) -> list[str]:
    """Return the arguments before the first option: after it, an argument could be an option's value."""
    options = (number for number, each in enumerate(arguments) if each.startswith("-"))
    return list(arguments[: next(options, len(arguments))])


def account() -> str:
    """Return the account of the operating system, or "" if it has no name, as in many containers."""
    try:
        return getuser()[:64]
    except (KeyError, OSError):
        return ""
