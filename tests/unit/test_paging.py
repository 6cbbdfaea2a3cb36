"""Pagination of lists, with real rows."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.core import signing
from django.test import Client
from django.urls import path
from rest_framework import generics, serializers
from rest_framework.request import Request

from config.platform.http.paging import NewestFirst, chosen

pytestmark = [pytest.mark.urls("tests.unit.test_paging"), pytest.mark.django_db]

START = datetime(2026, 1, 1, tzinfo=UTC)


class Account(serializers.ModelSerializer[User]):
    class Meta:
        model = User
        fields = ("username",)


class Accounts(generics.ListAPIView[User]):
    authentication_classes = permission_classes = ()
    queryset = User.objects.all()
    serializer_class = Account
    pagination_class = NewestFirst
    ordering: tuple[str, ...] = ("-date_joined",)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        chosen(request, "status", among={"done", "failed"})
        return super().list(request, *args, **kwargs)


class Mixed(Accounts):
    ordering = ("date_joined", "-first_name")


urlpatterns = [path("accounts", Accounts.as_view()), path("mixed", Mixed.as_view())]


def create_users(moments: dict[str, int]) -> None:
    User.objects.bulk_create(
        User(username=name, date_joined=START + timedelta(seconds=second), first_name=name[0])
        for name, second in moments.items()
    )


def names(body: dict[str, Any]) -> list[str]:
    return [row["username"] for row in body["results"]]


def follow_pages(client: Client, url: str | None, link: str = "next") -> Iterator[list[str]]:
    while url:
        body = client.get(url).json()
        yield names(body)
        url = body[link]


def last_page(client: Client, url: str) -> str:
    while link := client.get(url).json()["next"]:
        url = link
    return url


def test_it_shows_the_newest_first_with_full_links(client: Client) -> None:
    create_users({"old": 1, "new": 3, "middle": 2})

    body = client.get("/accounts?limit=2&status=done").json()

    assert list(body) == ["results", "next", "previous"]
    assert names(body) == ["new", "middle"]
    assert body["previous"] is None
    link = urlsplit(body["next"])
    assert (link.scheme, link.netloc, link.path) == ("http", "testserver", "/accounts")
    assert parse_qs(link.query).keys() == {"limit", "status", "cursor"}


@pytest.mark.parametrize("url", ["/accounts", "/mixed"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 20, 200])
@pytest.mark.parametrize("spread", [1, 3, 100])
@pytest.mark.slow
def test_it_visits_every_row_once_in_both_directions(client: Client, url: str, limit: int, spread: int) -> None:
    create_users({f"{'abc'[n % 3]}{n}": n // spread for n in range(20)})
    whole = names(client.get(f"{url}?limit=200").json())

    forwards = list(follow_pages(client, f"{url}?limit={limit}"))
    backwards = list(follow_pages(client, last_page(client, f"{url}?limit={limit}"), "previous"))

    assert list(chain.from_iterable(forwards)) == whole
    assert list(chain.from_iterable(reversed(backwards))) == whole
    assert len(set(whole)) == 20


def test_it_does_not_skip_or_repeat_rows_if_others_are_added_or_deleted(client: Client) -> None:
    create_users({"a": 1, "b": 2, "c": 3, "d": 4})
    first = client.get("/accounts?limit=2").json()

    create_users({"e": 5})
    User.objects.filter(username="c").delete()

    second = client.get(first["next"]).json()
    assert names(second) == ["b", "a"]
    assert names(client.get(second["previous"]).json()) == ["e", "d"]


def test_an_empty_last_page_links_back_to_the_first(client: Client) -> None:
    create_users({"a": 1, "b": 2, "c": 3})
    link = client.get("/accounts?limit=2").json()["next"]
    User.objects.filter(username="a").delete()

    body = client.get(link).json()

    assert (names(body), body["next"]) == ([], None)
    assert names(client.get(body["previous"]).json()) == ["c", "b"]


def test_a_single_page_has_no_links(client: Client) -> None:
    create_users({"a": 1})

    assert client.get("/accounts").json() == {"results": [{"username": "a"}], "next": None, "previous": None}


def test_it_shows_fifty_by_default(client: Client) -> None:
    create_users({str(n): n for n in range(51)})

    assert len(client.get("/accounts").json()["results"]) == 50


@pytest.mark.parametrize("limit", ["0", "201", "-1", "x", "", "1.5", "٣", "9" * 5000, "1e2"])
def test_it_refuses_other_limits(client: Client, limit: str) -> None:
    response = client.get("/accounts", {"limit": limit})

    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (400, "/limit")


def test_it_refuses_forged_cursors(client: Client) -> None:
    create_users({"a": 1, "b": 2})
    good = parse_qs(urlsplit(client.get("/accounts?limit=1").json()["next"]).query)["cursor"][0]
    forged = signing.dumps([False, "2026-01-01", "1"], salt="another")

    for url, cursor in [("/accounts", good[:-1]), ("/accounts", ""), ("/accounts", forged), ("/mixed", good)]:
        response = client.get(url, {"cursor": cursor})
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (400, "/cursor")
    assert client.get("/accounts", {"cursor": good}).status_code == 200


def test_it_refuses_an_unknown_choice(client: Client) -> None:
    error = client.get("/accounts?status=lost").json()["errors"][0]

    assert (error["pointer"], error["code"]) == ("/status", "invalid_choice")
    assert error["detail"] == "Must be one of: done, failed."
