"""Django's system checks, with those for deployments, as a subject of the doctor."""

from collections.abc import Collection, Iterator
from contextlib import nullcontext

from django.core.checks import CheckMessage, run_checks

from config.ops.doctor.findings import Finding, Subject, failure, ok, warning


def check_system(_: None) -> Iterator[Finding]:
    """Run the checks of `manage.py check --deploy`."""
    yield from findings(run_checks(include_deployment_checks=True)) or [ok("The system checks found no issues.")]


def findings(messages: Collection[CheckMessage]) -> list[Finding]:
    return [finding(message) for message in messages if not message.is_silenced()]


def finding(message: CheckMessage) -> Finding:
    """Return the finding, with the first part of Django's message; the rest is advice that can be found by the id."""
    state = f"{str(message.msg).split(' If ')[0]} ({message.id})".replace("\n", " ")
    remedy = str(message.hint or f"Look up {message.id} in Django's system check framework.")
    return failure(state, remedy) if message.is_serious() else warning(state, remedy)


SUBJECT = Subject(
    name="settings",
    open=nullcontext,
    checks=(check_system,),
    remedy_if_unreachable="Run python manage.py check, which reports settings that cannot be read.",
)
