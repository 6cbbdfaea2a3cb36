"""C2: the admin pages of tasks: shown and hidden data, actions, and queries."""

import html
from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from etl import runstate
from etl.core.errors import LlmForbidden, explain
from etl.core.states import Stage
from etl.models import Task
from etl.pipeline import completion, review
from tests.broker import queued, valkey
from tests.conftest import browser_of
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.etl_progress import begin, complete, fail
from tests.integration.reviewed import make_invoice
from tests.integration.staff import confirm, form_in, messages_of, select

pytestmark = pytest.mark.usefixtures("transactional_db", "empty_redis")

LIST = "/admin/etl/task/"


@pytest.fixture
def pages() -> Client:
    """A browser of a user who can view tasks, but not change them."""
    staff = User.objects.create_user("sam", is_staff=True)
    staff.user_permissions.add(Permission.objects.get(codename="view_task"))
    return browser_of(staff)


def text(pages: Client, url: str) -> str:
    response: Any = pages.get(url)
    assert response.status_code == 200
    return str(response.content.decode())


def rows(pages: Client) -> str:
    """Return the table of the list, without the filters, which name every stored status and error code."""
    return text(pages, LIST).partition('id="result_list"')[2].partition("</table>")[0]


def test_staff_find_tasks_and_see_their_outcomes(pages: Client, alice: User) -> None:
    """C2."""
    failed, done = make_task(alice), make_task(alice, filename="<b>invoice</b>.pdf")
    fail(failed)
    complete(done)
    whole = text(pages, LIST)
    assert "file_encrypted" in rows(pages)
    assert "&lt;b&gt;invoice&lt;/b&gt;.pdf" in whole
    assert "<b>invoice" not in whole
    assert reverse("admin:etl_task_changelist") in text(pages, "/admin/")

    assert "Remove its password" in text(pages, f"{LIST}{failed.pk}/change/")
    assert "100 %" in text(pages, f"{LIST}{done.pk}/change/")


def test_staff_are_not_advised_to_retry_permanent_errors(pages: Client, alice: User) -> None:
    task = make_task(alice)
    state = begin(task)
    error = explain(LlmForbidden("No language model is configured."), stage=Stage.POSTPROCESS)
    completion.record_end(runstate.fail(state, error=error, usage={}))
    page = text(pages, f"{LIST}{task.pk}/change/")
    assert "No language model is configured. A retry will fail again until the cause is fixed." in page


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status__exact=failed", 1),
        ("phase__exact=ocr", 2),
        ("q=alice", 3),
        ("q=bob", 0),
        ("q=x", 0),
        ("q=" + "9" * 30, 0),
        ("error_code=file_encrypted", 1),
        ("error_code=ocr_failed", 0),
        ("kind=txt", 3),
        ("kind=pdf", 0),
    ],
)
def test_lists_are_filtered_and_searched(pages: Client, alice: User, query: str, found: int) -> None:
    """C2."""
    tasks = [make_task(alice) for _ in range(3)]
    fail(tasks[0])
    complete(tasks[1])
    assert len(pages.get(f"{LIST}?{query}").context["cl"].result_list) == found
    assert len(pages.get(f"{LIST}?q={tasks[2].pk}").context["cl"].result_list) == 1


def test_staff_do_not_see_document_contents(pages: Client, alice: User) -> None:
    """C2: neither the text nor the results are shown, but durations are."""
    secret = "IBAN DE89 3704"
    task = make_task(alice)
    complete(task)
    done = Task.objects.get(pk=task.pk)
    warnings = [{"code": "possible_prompt_injection", "detail": f"It says {secret}."}]
    Task.objects.filter(pk=task.pk).update(
        result={**(done.result or {}), "data": {"iban": secret}, "citations": [{"quote": secret}]},
        metadata={**done.metadata, "warnings": warnings, "ocr": {"pages": 3, "duration_ms": 4200}},
    )
    valkey().flushdb()

    page = text(pages, f"{LIST}{task.pk}/change/")
    assert secret not in page
    assert "possible_prompt_injection" in page
    assert "4.2 s" in page
    assert secret not in text(pages, LIST)


def test_an_unfinished_task_shows_its_run_state(pages: Client, alice: User) -> None:
    """C2: its status comes from Redis, or from the row if Redis has lost the run-state."""
    task = make_task(alice)
    begin(task)
    assert "mineru_parsing" in text(pages, LIST)
    assert "mineru_parsing" in text(pages, f"{LIST}{task.pk}/change/")
    valkey().flushdb()
    assert "mineru_parsing" not in text(pages, LIST)
    assert "pending" in rows(pages).lower()


def test_a_task_links_to_its_related_objects(pages: Client, alice: User) -> None:
    task = make_task(alice)
    page = text(pages, f"{LIST}{task.pk}/change/")
    for url in (
        f"/admin/rules/rule/{task.rule_id}/change/",
        f"/admin/auth/user/{alice.pk}/change/",
        f"{LIST}?user__id__exact={alice.pk}&amp;rule__rule_id__exact={task.rule_id}",
    ):
        assert f'href="{url}"' in page
    found = pages.get(f"{LIST}?user__id__exact={alice.pk}&rule__rule_id__exact={task.rule_id}")
    assert [row.pk for row in found.context["cl"].result_list] == [task.pk]


# ---- Permissions and actions ----------------------------------------------------------------------------------------
@pytest.fixture
def editor(pages: Client) -> Client:
    """A browser of the same user, who can also change tasks."""
    User.objects.get(username="sam").user_permissions.add(Permission.objects.get(codename="change_task"))
    return pages


def logged_messages() -> list[str]:
    return list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))


def test_view_permission_shows_no_actions(pages: Client, alice: User) -> None:
    task = make_task(alice)
    for verb in ("cancel", "stop", "wake", "retry_ocr", "retry_postprocess"):
        url = f"{LIST}{task.pk}/{verb}/"
        assert url not in text(pages, f"{LIST}{task.pk}/change/")
        assert pages.get(url).status_code == 403
        assert pages.post(f"{LIST}do/{verb}/", {"selection": f'[["{task.pk}", "1"]]'}).status_code == 403
    assert Task.objects.get().status == "pending"


def test_staff_cancel_tasks_that_have_not_started(editor: Client, alice: User) -> None:
    waiting, begun = make_task(alice), make_task(alice)
    begin(begun)

    confirmation = select(editor, "cancel", waiting, begun)

    shown = html.unescape(confirmation.content.decode())
    assert "A document can be cancelled while it waits for OCR or post-processing." in shown
    assert "use Stop" in shown
    assert messages_of(confirm(editor, confirmation)) == [
        "Cancelled 1 document. The document will not be processed further."
    ]
    assert Task.objects.get(pk=waiting.pk).status == "cancelled"
    assert logged_messages() == ["Cancelled: The document will not be processed further."]


def test_staff_stop_a_running_task(editor: Client, alice: User) -> None:
    """B33."""
    begun, ended = make_task(alice), make_task(alice)
    begin(begun)
    complete(ended)
    confirmation = select(editor, "stop", begun, ended)
    assert "The document has ended." in html.unescape(confirmation.content.decode())
    confirmed = confirm(editor, confirmation)
    assert messages_of(confirmed)[0].startswith("Stopped 1 document.")
    assert {task.pk: task.status for task in Task.objects.all()} == {begun.pk: "cancelled", ended.pk: "completed"}


def test_the_history_of_a_review_has_no_values(pages: Client, alice: User) -> None:
    """B37: it has only the user, the pointers, and the time."""
    task = make_invoice(alice)
    row = review.correct(task, lambda data: data | {"number": "secret-71"}, user=alice, if_match="*")
    review.approve(row, user=alice)
    shown = text(pages, f"{LIST}{task.pk}/change/")
    assert "Corrected by alice: /number" in shown
    assert "Approved by alice" in shown
    assert "secret-71" not in shown
    assert "INV-17" not in shown
    for name, number in (("approved", 1), ("corrected", 1), ("waiting", 0)):
        assert (text(pages, f"{LIST}?review={name}").count(f"{LIST}{task.pk}/change/") > 0) is bool(number), name


def test_staff_retry_a_task_once(editor: Client, alice: User) -> None:
    """C2, B7: a second click on the same form is refused, because the task has changed since."""
    task = make_task(alice)
    complete(task)
    action, fields = form_in(editor.get(f"{LIST}{task.pk}/retry_ocr/"))
    editor.post(action, fields)
    again = Task.objects.get(pk=task.pk)
    assert (again.status, again.run, again.user) == ("pending", 2, alice)
    complete(again)

    assert messages_of(editor.post(action, fields))[-1] == "Unchanged: 1 document. Changed since you selected it."
    assert logged_messages() == ["Retried: Queued from OCR."]


def test_a_refused_retry_shows_the_reason(editor: Client, alice: User) -> None:
    """B7: post-processing cannot be retried without a stored OCR result."""
    task = make_task(alice)
    fail(task)
    page = confirm(editor, editor.get(f"{LIST}{task.pk}/retry_postprocess/"))
    assert messages_of(page) == [
        "Unchanged: 1 document. This task has no stored OCR result. Retry from OCR.",
    ]
    assert logged_messages() == []


def test_staff_send_a_lost_wake_up_message_again(editor: Client, alice: User) -> None:
    """C2, B10: a lost run-state is recreated as well."""
    task = make_task(alice)
    valkey().delete(settings.ETL_QUEUES[Stage.OCR])
    wake = f"{LIST}{task.pk}/wake/"
    for words in ("The wake-up message was sent again.", "The lost state was recreated."):
        assert messages_of(confirm(editor, editor.get(wake)))[-1] == f"Requeued 1 document. {words}"
        assert queued(settings.ETL_QUEUES[Stage.OCR]) == 1
        assert runstate.read(task.pk)
        valkey().flushdb()


def test_a_running_task_is_left_alone(editor: Client, alice: User) -> None:
    task = make_task(alice)
    begin(task)
    (words,) = messages_of(confirm(editor, editor.get(f"{LIST}{task.pk}/wake/")))
    assert words.startswith("Unchanged: 1 document. A worker is processing this task.")


def test_tasks_are_read_only(pages: Client, alice: User) -> None:
    task = make_task(alice)
    assert pages.get(f"{LIST}add/").status_code == 403
    assert pages.post(f"{LIST}{task.pk}/change/", {"status": "failed"}).status_code == 403
    assert pages.post(f"{LIST}{task.pk}/delete/", {"post": "yes"}).status_code == 403
    assert Task.objects.get().status == "pending"


def test_the_number_of_queries_does_not_grow_with_the_rows(pages: Client, alice: User) -> None:
    """C2: the queries do not read results, either."""
    rule = make_rule(alice)
    costs = []
    for count in (1, 60):
        Task.objects.bulk_create(
            Task(user=alice, rule=rule, rule_version=1, kind="txt", size=1, document_key="x") for _ in range(count)
        )
        with CaptureQueriesContext(connection) as captured:
            text(pages, LIST)
        costs.append(len(captured))
    assert costs[0] == costs[1]
    assert not any('"etl_task"."result"' in query["sql"] for query in captured.captured_queries)


def test_other_users_see_nothing(alice: User) -> None:
    client = browser_of(alice)
    assert client.get(LIST).status_code == 302
