"""The admin: its pages, links, and forms; and the start page. C2."""

import re
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.apps import apps
from django.conf import LazySettings
from django.contrib.admin import site
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from knox.models import AuthToken
from rest_framework.test import APIClient

from config.platform.admin.lists import RestrictedFilters
from exports.admin.errors import FOR_STAFF, advice_on
from exports.core.errors import EXPLANATIONS
from exports.delivery import links
from exports.models import Chunk, Dataset, Download, File, Job, Link, Receipt, Slot
from exports.worker import leases, transitions
from tests.conftest import browser_of, change_settings
from tests.integration.factories import make_job, result_of
from tests.integration.staff import list_of, messages_of, page_of, text_of

MODELS = ("job", "chunk", "file", "receipt", "link", "download", "dataset", "slot", "tick")
READ_ONLY = tuple(model for model in MODELS if model != "dataset")

LINK = r'href="(/admin/exports/\w+/(?:[^"/]+/change/|\?[^"]+))'
LISTS = (*MODELS, "auth_user", "auth_group", "knox_authtoken")


# ---- Viewing ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_it_shows_a_list_and_a_page_of_each_model(pages: Client, failed: Job, delivered: Receipt) -> None:
    for model in MODELS:
        row = apps.get_model("exports", model).objects.order_by("pk").last()
        assert f'href="{page_of(row)}' in text_of(pages.get(list_of(model)))
        assert str(row) in text_of(pages.get(page_of(row)))


def test_it_opens_empty_lists(pages: Client) -> None:
    for model in LISTS:
        assert pages.get(list_of(model)).status_code == 200


@pytest.mark.slow
def test_a_job_links_to_its_related_objects(pages: Client, delivered: Receipt) -> None:
    """Follow all links to the pages of rows and to filtered lists, until there are no new ones."""
    seen, todo = set[str](), {page_of(delivered.job)}
    while todo:
        path = todo.pop()
        seen.add(path)
        todo |= set(re.findall(LINK, text_of(pages.get(path)))) - seen

    rows = (Chunk, File, Receipt, Link, Download, Job)
    assert {page_of(model.objects.get()) for model in rows} | {page_of(delivered.job.dataset)} <= seen
    assert {list_of(model, job=delivered.pk) for model in ("chunk", "link", "download")} <= seen


def test_it_explains_errors(pages: Client, failed: Job) -> None:
    title, advice = EXPLANATIONS["EXPORT_SOURCE_ERROR"][0], FOR_STAFF["EXPORT_SOURCE_ERROR"]
    for row in (failed, failed.chunks.filter(status="failed").first()):
        text = text_of(pages.get(page_of(row)))
        assert title in text
        assert advice in text
        assert "SQLSTATE P0001" in text
    assert title not in text_of(pages.get(page_of(failed.chunks.get(status="done"))))


def test_explanations_for_staff_do_not_refer_to_staff() -> None:
    assert FOR_STAFF.keys() <= EXPLANATIONS.keys()
    assert not [code for code in EXPLANATIONS if "staff" in advice_on(code)]


@pytest.mark.slow
def test_it_marks_slots_that_claims_skip(pages: Client, slots: int, dataset: Dataset, settings: LazySettings) -> None:
    """The rows of slots remain when their limit is lowered."""
    Slot.objects.provide(count=2, dataset=dataset)
    Dataset.objects.of_functions().update(max_concurrency=1)
    limit = Slot.objects.filter(dataset=None).count() - 1
    change_settings(settings, export_db_slots=limit)
    Slot.objects.filter(dataset=None, number=limit).update(token=1, lease_until=timezone.now() + timedelta(minutes=1))

    of_documents = Slot.objects.filter(dataset__kind="documents")
    states = {slot: text_of(pages.get(page_of(slot))) for slot in Slot.objects.difference(of_documents)}

    unused = {str(slot) for slot, text in states.items() if "not in use" in text}
    assert unused == {f"all #{limit + 1}", f"{dataset} #2"}
    assert text_of(pages.get(list_of("slot"))).count("not in use") == 2


def test_a_slot_shows_its_running_chunk(pages: Client, dataset: Dataset, alice: User) -> None:
    """The first chunk of a batch may have ended."""
    make_job(dataset, alice, 20)
    first, second = leases.claim_batch(backend="test", sizes={dataset.name: 2})
    transitions.finish([(first, result_of(first))])
    slot = Slot.objects.held().get()
    for page in (page_of(slot), list_of("slot")):
        text = text_of(pages.get(page))
        assert page_of(Chunk.objects.get(pk=second.chunk_id)) in text
        assert page_of(Chunk.objects.get(pk=first.chunk_id)) not in text


@pytest.mark.slow
def test_it_finds_a_link_by_its_leaked_url(pages: Client, delivered: Receipt) -> None:
    """The search term can be a URL, a token, a truncated token, or an ID."""
    link = links.mint(delivered)
    token = links.token_of(link)
    url = f"https://sluice.example{links.path_of(link)}"
    for term in (url, f"  {url}&x=1 ", token, token[:40], link.pk.hex, str(link.pk)):
        shown = pages.get(list_of("link", q=term)).context["cl"].result_list
        assert [row.pk for row in shown] == [link.pk], term
    assert not pages.get(list_of("link", q=url.replace(link.pk.hex, "0" * 32))).context["cl"].result_list


def test_a_link_leads_to_the_revocation_of_its_receipt(pages: Client, delivered: Receipt) -> None:
    link = Link.objects.get()
    revoke = f'href="{page_of(delivered, "revoke")}"'
    text = text_of(pages.get(page_of(link)))
    assert revoke in text
    assert "Revoke receipt" in text
    Receipt.objects.update(expires_at=timezone.now() - timedelta(minutes=1))
    assert revoke not in text_of(pages.get(page_of(link)))


def test_the_history_of_a_dataset_accepts_any_method(pages: Client, dataset: Dataset) -> None:
    assert pages.post(page_of(dataset, "history")).status_code == 200


def test_it_explains_an_empty_history(pages: Client, failed: Job) -> None:
    text = text_of(pages.get(page_of(failed, "history")))
    assert "No changes have been made in the admin." in text
    assert "added via this admin site" not in text


def test_it_does_not_show_usable_links(pages: Client, delivered: Receipt) -> None:
    link = Link.objects.get()
    for path in (page_of(link), page_of(delivered), page_of(delivered.job), list_of("link")):
        assert links.token_of(link).partition(".")[2] not in text_of(pages.get(path))


@pytest.mark.parametrize(
    ("model", "query", "rows"),
    [
        ("job", {"q": "{job}"}, 1),
        ("job", {"q": "alice"}, 1),
        ("job", {"q": "alic"}, 0),
        ("job", {"q": "00000000-0000-0000-0000-000000000000"}, 0),
        ("chunk", {"q": "{job}"}, 3),
        ("chunk", {"q": "JFK"}, 3),
        ("chunk", {"job": "{job}", "status__exact": "failed"}, 2),
        ("chunk", {"job": "not one"}, 0),
        ("chunk", {"error_code": "EXPORT_SOURCE_ERROR"}, 2),
        ("link", {"q": "nothing"}, 0),
        ("link", {"job": "{job}"}, 0),
        ("file", {"q": "things/none.csv"}, 0),
        ("etl_sample", {"q": "nothing"}, 0),
        ("etl_sample", {"q": "9" * 40}, 0),
    ],
)
def test_it_finds_rows_by_search(pages: Client, failed: Job, model: str, query: dict[str, str], rows: int) -> None:
    response = pages.get(list_of(model), {name: value.format(job=failed.pk) for name, value in query.items()})

    assert response.status_code == 200
    assert response.context["cl"].result_count == rows


# ---- Permissions --------------------------------------------------------------------------------------------------
def test_other_users_are_redirected_to_the_login(alice: User) -> None:
    for client, model in product((Client(), browser_of(alice)), LISTS):
        response = client.get(list_of(model))
        assert (response.status_code, response["Location"].partition("?")[0]) == (302, "/admin/login/")


def test_outcomes_cannot_be_edited(pages: Client, delivered: Receipt) -> None:
    for model in READ_ONLY:
        rows = apps.get_model("exports", model).objects.order_by("pk")
        before = list(rows.values())
        row = rows.last()

        assert pages.get(reverse(f"admin:exports_{model}_add")).status_code == 403
        assert pages.post(reverse(f"admin:exports_{model}_add"), {}).status_code == 403
        assert pages.post(page_of(row), {"status": "success"}).status_code == 403
        assert pages.post(page_of(row, "delete"), {"post": "yes"}).status_code == 403
        pages.post(list_of(model), {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})

        assert list(rows.all().values()) == before


@pytest.mark.parametrize(
    ("model", "lookup"),
    [
        ("webhook", "secret__startswith"),
        ("webhook", "secret"),
        ("webhook", "url__contains"),
        ("job", "status__startswith"),
        ("job", "user__password__startswith"),
        ("chunk", "error_code__regex"),
        ("dataset", "function__startswith"),
        ("allowance", "user__password__startswith"),
        ("etl_task", "result__icontains"),
        ("etl_task", "result__data__iban__exact"),
        ("knox_authtoken", "digest__startswith"),
        ("auth_user", "email__startswith"),
        ("auth_group", "name__startswith"),
        ("admin_logentry", "change_message__contains"),
    ],
)
def test_list_filters_do_not_leak_values(pages: Client, model: str, lookup: str) -> None:
    assert pages.get(list_of(model, **{lookup: "a"})).status_code == 400


def test_lists_refuse_unknown_filters() -> None:
    assert [each for each in site._registry.values() if not isinstance(each, RestrictedFilters)] == []


@pytest.mark.slow
def test_lists_accept_their_own_filters_and_those_of_links(pages: Client, failed: Job) -> None:
    for model, query in (
        ("job", {"user__id__exact": failed.user_id, "dataset__id__exact": 1, "status__exact": "failed"}),
        ("job", {"created_at__gte": "2024-01-01T00:00:00Z", "finished_at__isnull": "False"}),
        ("chunk", {"job": failed.pk, "status__in": "failed,done", "error_code": "EXPORT_SOURCE_ERROR"}),
        ("slot", {"dataset__isnull": True, "state": "held"}),
        ("download", {"link__link_id__exact": failed.pk}),
        ("delivery", {"webhook__id__exact": failed.pk}),
        ("etl_task", {"rule__rule_id__exact": 1, "user__id__exact": 1, "created_at__lt": "2024-01-01T00:00:00Z"}),
        ("auth_user", {"is_staff__exact": 1, "groups__id__exact": 1}),
        ("admin_logentry", {"content_type__id__exact": 1}),
    ):
        assert pages.get(list_of(model, **query)).status_code == 200, query


# ---- Account managers ---------------------------------------------------------------------------------------------
def account_manager() -> User:
    """Create a user who may change accounts but is not a superuser."""
    user = User.objects.create_user("hal", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(codename__in=("view_user", "change_user", "add_user", "change_group"))
    )
    return user


def test_only_superusers_change_groups(alice: User) -> None:
    """A user who may change a group could grant its members any permission."""
    client, group = browser_of(account_manager()), Group.objects.create(name="desk")
    assert client.post(reverse("admin:auth_group_change", args=[group.pk]), {"name": "mine"}).status_code == 403


def test_account_managers_cannot_grant_permissions(alice: User) -> None:
    hal = account_manager()
    client = browser_of(hal)
    form = {
        "is_staff": "on",
        "is_superuser": "on",
        "date_joined_0": "2024-01-01",
        "date_joined_1": "00:00:00",
        "user_permissions": Permission.objects.values_list("pk", flat=True),
    }
    for user in (hal, alice):
        before = set(user.user_permissions.all())
        page = reverse("admin:auth_user_change", args=[user.pk])
        assert 'name="is_superuser"' not in text_of(client.get(page))
        sent = {"username": user.username, "email": "new@a.example", "is_active": "on", **form}
        assert client.post(page, sent).status_code == 302
        found = User.objects.get(pk=user.pk)
        assert (found.email, found.is_staff, found.is_superuser) == ("new@a.example", user.is_staff, False)
        assert set(found.user_permissions.all()) == before


@pytest.mark.slow
def test_account_managers_cannot_change_other_staff(pages: Client, staff: User, alice: User) -> None:
    hal = account_manager()
    client = browser_of(hal)
    other = User.objects.create_user("olga", is_staff=True)
    new = {"password1": "aZ9!kkkkqq", "password2": "aZ9!kkkkqq", "usable_password": "true", "set-password": "1"}
    for browser, user, code in (
        (client, staff, 403), (client, other, 403), (client, alice, 302), (client, hal, 302), (pages, other, 302),
    ):  # fmt: skip
        if code == 403:
            page = reverse("admin:auth_user_change", args=[user.pk])
            assert browser.post(page, {"username": "mine"}).status_code == 403
        assert browser.post(reverse("admin:auth_user_password_change", args=[user.pk]), new).status_code == code
        assert User.objects.get(pk=user.pk).check_password("aZ9!kkkkqq") is (code == 302)
    assert 'name="is_superuser"' in text_of(pages.get(reverse("admin:auth_user_change", args=[other.pk])))


# ---- Datasets -----------------------------------------------------------------------------------------------------
def form_of(**changes: Any) -> dict[str, Any]:
    form = {
        "name": "new", "function": "data.rows_for", "base_path": "new", "schema_version": 1, "formats": ["csv", "json"],
        "key_pattern": "^[A-Z]+$", "statement_timeout": 30, "max_concurrency": 3, "reuse_max_age": "",
        "grants-TOTAL_FORMS": 0, "grants-INITIAL_FORMS": 0,
    }  # fmt: skip
    return form | changes


def test_it_offers_all_formats_for_a_new_dataset(pages: Client) -> None:
    text = text_of(pages.get(reverse("admin:exports_dataset_add")))

    boxes = re.findall(r'<input type="checkbox" name="formats" value="(\w+)"[^>]* checked', text)
    assert boxes == ["csv", "jsonl", "json", "parquet"]


def test_it_saves_a_dataset(pages: Client, dataset: Dataset) -> None:
    response = pages.post(reverse("admin:exports_dataset_add"), form_of())

    assert response.status_code == 302
    new = Dataset.objects.get(name="new")
    assert (new.formats, new.max_concurrency, new.reuse_max_age) == (["csv", "json"], 3, None)
    assert Slot.objects.filter(dataset=new).count() == 3
    assert len(messages_of(response)) == 1  # no warning

    assert pages.post(page_of(new), form_of(formats=["jsonl"], schema_version=2)).status_code == 302
    new.refresh_from_db()
    assert (new.formats, new.schema_version) == (["jsonl"], 2)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"base_path": "things/inner"}, "base_path"),
        ({"base_path": "things"}, "base_path"),
        ({"base_path": "../x"}, "base_path"),
        ({"key_pattern": "[a-"}, "key_pattern"),
        ({"function": "rows_for"}, "function"),
        ({"formats": []}, "formats"),
        ({"formats": ["xlsx"]}, "formats"),
        ({"statement_timeout": 541}, "statement_timeout"),
        ({"max_concurrency": 0}, "max_concurrency"),
    ],
)
def test_it_refuses_a_dataset(pages: Client, dataset: Dataset, changes: dict[str, Any], field: str) -> None:
    response = pages.post(reverse("admin:exports_dataset_add"), form_of(**changes))

    assert list(response.context["adminform"].form.errors) == [field]
    assert not Dataset.objects.filter(name="new").exists()


def test_it_warns_of_an_unusable_function(pages: Client, dataset: Dataset) -> None:
    response = pages.post(reverse("admin:exports_dataset_add"), form_of(function="data.missing"))

    assert Dataset.objects.filter(name="new").exists()
    assert any(
        "Saved, but exports may fail: data.missing does not exist in the source database." in text
        for text in messages_of(response)
    )


def test_it_deletes_only_unused_datasets(pages: Client, failed: Job) -> None:
    unused = Dataset.objects.create(name="unused", function="a.b", base_path="unused")

    assert pages.post(page_of(failed.dataset, "delete"), {"post": "yes"}).status_code == 403
    assert pages.post(page_of(unused, "delete"), {"post": "yes"}).status_code == 302
    assert list(Dataset.objects.of_functions()) == [failed.dataset]


# ---- Tokens, accounts, and sign-in --------------------------------------------------------------------------------
def test_it_revokes_tokens_without_showing_their_digests(pages: Client, alice: User, api: APIClient) -> None:
    token = AuthToken.objects.get(user=alice)
    text = text_of(pages.get(list_of("knox_authtoken")))
    assert token.token_key[:8] in text
    assert token.digest not in text
    assert token.token_key not in text
    assert pages.get(reverse("admin:knox_authtoken_change", args=[token.pk])).status_code == 403
    (button,) = set(re.findall(r'href="(/admin/knox/authtoken/[^"]+/revoke/)"', text))
    assert "Revoke this token?" in text_of(pages.get(button))
    assert api.get("/exports").status_code == 200

    response = pages.post(button, {"_form_submitted": "true"})

    assert messages_of(response) == [f"Revoked token {token.token_key[:8]}… of alice."]
    assert api.get("/exports").status_code == 401
    assert LogEntry.objects.get().get_edited_object() == alice
    assert pages.post(button, {"_form_submitted": "true"}).status_code == 404


def test_accounts_can_be_deactivated_but_not_deleted(pages: Client, alice: User) -> None:
    text = text_of(pages.get(reverse("admin:auth_user_change", args=[alice.pk])))
    assert "This form" not in text
    assert pages.get(reverse("admin:auth_user_password_change", args=[alice.pk])).status_code == 200
    assert pages.get(reverse("admin:auth_user_add")).status_code == 200
    assert pages.post(reverse("admin:auth_user_delete", args=[alice.pk]), {"post": "yes"}).status_code == 403


def test_the_login_redirects_to_the_index(staff: User) -> None:
    client = Client()
    login = client.get(client.get("/admin/")["Location"])["Location"]
    assert client.get(login).status_code == 200

    staff.set_password("only for tests")
    staff.save()

    response = client.post(login, {"username": "sam", "password": "only for tests"})

    assert response["Location"] == "/admin/"
    assert client.get("/admin/").status_code == 200


# ---- The start page -----------------------------------------------------------------------------------------------
def test_the_root_url_shows_the_start_page(client: Client) -> None:
    text = text_of(client.get("/"))

    paths = re.findall(r'<a [^>]*href="([^"]+)"', text)
    assert {"/api/docs", "/readyz"} <= set(paths)
    assert "curl http://testserver/exports " in text
    assert client.head("/").status_code == 200
    assert client.post("/").status_code == 405
