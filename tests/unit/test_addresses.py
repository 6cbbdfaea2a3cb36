"""Detection of client addresses from X-Forwarded-For headers."""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from config.platform.http.addresses import client_address, parse
from tests.conftest import change_settings


@pytest.fixture
def proxies(settings: LazySettings) -> None:
    networks = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]
    change_settings(settings, trusted_proxy_cidrs=networks)


def client_address_of(peer: str, forwarded: str | None = None) -> str | None:
    headers: dict[str, Any] = {} if forwarded is None else {"HTTP_X_FORWARDED_FOR": forwarded}
    address = client_address(RequestFactory().get("/", REMOTE_ADDR=peer, **headers))
    return None if address is None else str(address)


def test_it_ignores_forwarded_headers_without_trusted_proxies() -> None:
    assert client_address_of("10.0.0.1", "1.2.3.4") == "10.0.0.1"


@pytest.mark.usefixtures("proxies")
@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, 1.2.3.4, 10.0.0.2", "1.2.3.4"),
        ("10.0.0.1", "127.0.0.1, 1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("1.2.3.4", "127.0.0.1", "1.2.3.4"),
        ("10.0.0.1", "garbage, 1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "1.2.3.4, garbage", None),
        ("10.0.0.1", "1.2.3.4,", None),
        ("10.0.0.1", "unknown", None),
        ("::ffff:10.0.0.1", "::ffff:1.2.3.4", "1.2.3.4"),
        ("fd00::1", "2001:db8::7", "2001:db8::7"),
        ("10.0.0.1", "1.2.3.4:5678", "1.2.3.4"),
        ("10.0.0.1", "[2001:db8::7]:5678", "2001:db8::7"),
        ("", "1.2.3.4", None),
        ("unix:", "1.2.3.4", None),
    ],
)
def test_it_reads_only_entries_that_trusted_proxies_added(
    peer: str, forwarded: str | None, expected: str | None
) -> None:
    assert client_address_of(peer, forwarded) == expected


@given(st.one_of(st.ip_addresses().map(str), st.text()))
def test_it_parses_any_text_to_an_address_or_none(text: str) -> None:
    address = parse(text)

    assert address is None or parse(str(address)) == address


def test_equivalent_spellings_are_one_address() -> None:
    assert parse("::ffff:192.0.2.1") == ip_address("192.0.2.1")
    assert parse("fe80::1%eth0") == ip_address("fe80::1")
