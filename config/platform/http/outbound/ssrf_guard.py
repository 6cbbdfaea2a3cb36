"""SSRF guard: restricts the addresses to which a user's URL can lead."""

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_network

from config.platform.http.addresses import Address, Network, parse, within
from config.platform.http.outbound.deadline import run_within

# The IPv6 range for public use. NAT64, 6to4, and Teredo addresses embed IPv4 addresses, including private ones. NAT64
# is outside of this range, BLOCKED contains 6to4, and Python counts Teredo as private.
GLOBAL_UNICAST = IPv6Network("2000::/3")
BLOCKED = tuple(
    map(
        ip_network,
        (
            "100.64.0.0/10",  # carrier-grade NAT, and the metadata service of one cloud
            "168.63.129.16/32",  # a public address, but internal to every Azure network
            "192.0.0.0/24",  # IETF protocol assignments; Python counts some as public
            "192.88.99.0/24",  # 6to4 relays
            "2001:20::/28",  # ORCHIDv2: identifiers, not addresses
            "2002::/16",  # 6to4
            "3fff::/20",  # documentation; unknown to older versions of Python
        ),
    )
)


class AddressBlocked(Exception):
    """The host resolves to an address that the guard does not permit."""


def is_public(address: Address) -> bool:
    if within(address, BLOCKED) or address.is_multicast:
        return False
    if isinstance(address, IPv6Address):
        return address in GLOBAL_UNICAST and not address.is_private
    return address.is_global and not address.is_reserved


@dataclass(frozen=True, slots=True)
class SsrfGuard:
    """A guard that permits public addresses over https, and `allowed` internal networks over https and http."""

    allowed: tuple[Network, ...] = ()

    def permits(self, address: Address | None, *, scheme: str) -> bool:
        if address is None:
            return False
        return within(address, self.allowed) or (scheme == "https" and is_public(address))

    def check(self, texts: Iterable[str], *, scheme: str) -> list[str]:
        """Return the addresses to connect to. Raises AddressBlocked unless all of them are permitted."""
        addresses = [parse(text) for text in texts]
        if not all(self.permits(address, scheme=scheme) for address in addresses):
            raise AddressBlocked
        return [str(address) for address in addresses]


def resolve(host: str, port: int, *, seconds: float) -> list[str]:
    """Return the addresses of a host. Raises OSError, including TimeoutError, and ValueError for an invalid name."""
    found = run_within(seconds, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return [str(entry[4][0]) for entry in found]
