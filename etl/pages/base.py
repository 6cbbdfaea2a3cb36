"""What the pages of documents share: requests count as the API's do, and a stranger's task is one that is not there."""

from collections.abc import Mapping
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.models import User
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from config.platform.http.problems import BadInput, NotFound, input_errors
from config.platform.ui.base import Page
from etl.api import lookup
from etl.models import Task
from etl.runstate import RunState
from rules.api import rates
from rules.library import catalog, requirements
from rules.models import Rule

UNKNOWN = "There is no such document of yours."
MOST_RULES = 300


class DocumentsPage(Page):
    throttle = rates.PerUser


class TaskPage(DocumentsPage):
    """A page about one task."""

    def state(self) -> RunState:
        return seen(self.kwargs["task_id"], user=self.user)


def owned(task_id: int, *, user: User) -> Task:
    """Return the row of a task that the user may see, without its result. Raises NotFound."""
    row = Task.objects.owned_by(user).filter(pk=task_id).defer("result").first()
    if row is None:
        raise NotFound(UNKNOWN)
    return row


def seen(task_id: int, *, user: User) -> RunState:
    """Return what is known of a task, without its result, which may be megabytes. Raises NotFound."""
    states = lookup.shown([owned(task_id, user=user)])
    if not states:
        raise NotFound(UNKNOWN)
    return states[0]


def checked(serializer: serializers.BaseSerializer) -> Mapping[str, Any]:
    """Return what a serializer of the API makes of a body. Raises BadInput, as the API would answer."""
    try:
        serializer.is_valid(raise_exception=True)
    except ValidationError as error:
        raise BadInput(*input_errors(error.detail)) from None
    return cast("Mapping[str, Any]", serializer.validated_data)


# ---- Rules to choose from -------------------------------------------------------------------------------------------
Groups = list[tuple[str, list[tuple[str, str]]]]


def rules_for(user: User) -> tuple[str, Groups]:
    """Return the label of the default rule, "" without one, and the rules that the user may use, in groups.

    Those that cannot work here are among them, and say so: they can be retried once a model is set up.
    """
    rules = (
        catalog.visible_to(user)
        .only("rule_id", "name", "owner_id", "slug", "postprocess_mode")
        .order_by("name", "rule_id")
    )
    groups: dict[str, list[tuple[str, str]]] = {"Mine": [], "Everybody's": [], "Other people's": []}
    default = catalog.default() if settings.SLUICE.etl_global_rule_enabled else None
    for rule in rules[:MOST_RULES]:
        group = "Everybody's" if catalog.is_system(rule) else "Mine" if rule.owner_id == user.pk else "Other people's"
        groups[group].append((str(rule.pk), label(rule)))
    return label(default) if default else "", [(name, choices) for name, choices in groups.items() if choices]


def label(rule: Rule) -> str:
    return requirements.marked(rule.name, mode=rule.postprocess_mode)
