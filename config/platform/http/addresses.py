"""Client addresses, with X-Forwarded-For from trusted proxies only."""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from django.conf import settings
from django.http import HttpRequest

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def client_address(request: HttpRequest) -> Address | None:
    """Return the client's address, or None if it is unknown.

    Only hops written by trusted proxies count: a hop is used if the hop to its right is in TRUSTED_PROXY_CIDRS, so
    entries written by the client are never reached. If a trusted proxy wrote an invalid address, the result is None,
    and not the proxy's address, which may be in METRICS_ALLOW_CIDRS.

    The server must not change REMOTE_ADDR (uvicorn: `--no-proxy-headers`), or loopback clients could choose their
    address.
    """
    address = parse(request.META.get("REMOTE_ADDR", ""))
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "")
    for hop in reversed(forwarded.split(",") if forwarded else []):
        if address is None or not within(address, settings.SLUICE.trusted_proxy_cidrs):
            break
        address = parse(hop)
    return address


def within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks if network.version == address.version)


def rate_limit_key(request: HttpRequest) -> str:
    """Return the rate limit key of an anonymous request: the IPv4 address, or the IPv6 /64, which one host may own.

    Unknown addresses share one key, because otherwise they would bypass the limit.
    """
    address = client_address(request)
    return str(network_around(address, ipv4=32, ipv6=64)) if address else "unknown"


def network_around(address: Address, *, ipv4: int, ipv6: int) -> Network:
    """Return the network of an address, with a prefix of this length: `192.0.2.0/24`, `2001:db8::/64`."""
    bits = ipv4 if isinstance(address, IPv4Address) else ipv6
    return ip_network((str(address), bits), strict=False)


def parse(text: str) -> Address | None:
    """Return the address in a text such as `10.0.0.1`, `10.0.0.1:80`, `[::1]:80`, `fe80::1%eth0`, or None.

    IPv4-mapped IPv6 addresses become IPv4, so that one client has one address.
    """
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
