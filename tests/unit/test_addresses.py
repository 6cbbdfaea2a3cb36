"""Whose address is believed."""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from config.platform.http.addresses import client_address, parse


@pytest.fixture
def proxies(settings: LazySettings) -> None:
    networks = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]
    settings.SLUICE = settings.SLUICE.model_copy(update={"trusted_proxy_cidrs": networks})


def seen(peer: str, forwarded: str | None = None) -> str | None:
    headers: dict[str, Any] = {} if forwarded is None else {"HTTP_X_FORWARDED_FOR": forwarded}
    address = client_address(RequestFactory().get("/", REMOTE_ADDR=peer, **headers))
    return None if address is None else str(address)


def test_it_believes_nobody_when_no_proxy_is_trusted() -> None:
    assert seen("10.0.0.1", "1.2.3.4") == "10.0.0.1"


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
def test_it_reads_the_header_only_as_far_as_proxies_wrote_it(
    peer: str, forwarded: str | None, expected: str | None
) -> None:
    assert seen(peer, forwarded) == expected


@given(st.one_of(st.ip_addresses().map(str), st.text()))
def test_it_makes_an_address_or_nothing_of_any_text(text: str) -> None:
    address = parse(text)

    assert address is None or parse(str(address)) == address


def test_it_gives_one_client_one_address() -> None:
    assert parse("::ffff:192.0.2.1") == ip_address("192.0.2.1")
    assert parse("fe80::1%eth0") == ip_address("fe80::1")
