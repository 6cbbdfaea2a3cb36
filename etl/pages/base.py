"""Base classes of the document pages. Rate limits and permissions are those of the API."""

from django.contrib.auth.models import User

from config.platform.http import staff
from config.platform.http.problems import NotFound, require_first
from config.platform.ui.base import Page
from etl.api import lookup
from etl.models import Task
from etl.runstate import RunState
from rules.api import rates

UNKNOWN = "Document not found."


class DocumentsPage(Page):
    throttle = rates.EtlThrottle


CONTENT_OPENED = "On the web page: opened the document."


class TaskPage(DocumentsPage):
    """A page about one task."""

    def state(self) -> RunState:
        return visible_state(self.kwargs["task_id"], user=self.user)

    def content_state(self) -> RunState:
        """Return the state for a page with content of the document, and record the access of staff."""
        state = self.state()
        lookup.record_access(state, user=self.user, message=CONTENT_OPENED)
        return state


def visible(task_id: int, *, user: User) -> Task:
    """Return a task that the user may see, without its result. Raises NotFound."""
    return require_first(Task.objects.visible_to(user).filter(pk=task_id).without_results(), NotFound(UNKNOWN))


def changeable(task_id: int, *, user: User, verb: str = "change") -> Task:
    """Return a task that the user may change or delete, without its result. Raises NotFound and NotPermitted."""
    row = visible(task_id, user=user)
    staff.require_change(user, row, verb)
    return row


def visible_state(task_id: int, *, user: User) -> RunState:
    """Return the state of a task, without its result, which may be megabytes. Raises NotFound."""
    (state,) = lookup.states_of_rows([visible(task_id, user=user)])
    return state
