"""Concurrent clients of one link. Row 13 of docs/reliability.md."""

import hashlib
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.processes import Web
from exports.models import Download, Link, Receipt
from tests.chaos.site import Site

CLIENTS = 100
USER = {"User-Agent": "curl/8.5"}
# Requests of link scanners and browsers before the user's request: method, headers, and expected status.
SCANNERS: dict[str, tuple[str, dict[str, str], int]] = {
    "HEAD": ("HEAD", USER, 200),
    "a browser that prefetches": ("GET", {**USER, "Sec-Purpose": "prefetch"}, 204),
    "a browser that prerenders": ("GET", {**USER, "Sec-Purpose": "prefetch;prerender"}, 204),
    "an older browser that prefetches": ("GET", {**USER, "Purpose": "prefetch"}, 204),
    "a mail scanner": ("GET", {"User-Agent": "Mozilla/5.0 (compatible; LinkScanner/1.0)"}, 403),
    "a link preview in a chat": ("GET", {"User-Agent": "facebookexternalhit/1.1"}, 403),
    "HEAD of a mail scanner": ("HEAD", {"User-Agent": "Mozilla/5.0 (compatible; LinkScanner/1.0)"}, 403),
    "OPTIONS": ("OPTIONS", USER, 200),
    "POST": ("POST", USER, 405),
}
# On a busy machine, some of a hundred concurrent requests may time out while they wait for a database connection.
BUSY = (503, "database_unavailable")
RATES = {"EXPORT_DOWNLOAD_RATE": "1000000/min"}


def request(url: str, method: str = "GET", headers: dict[str, str] = USER) -> httpx2.Response:
    """Send a request on a new connection, as a different client would."""
    with httpx2.Client(trust_env=False, timeout=60) as client:
        return client.request(method, url, headers=headers)


def link_of(site: Site) -> str:
    site.client.headers.update(USER)  # the link is bound to the client that created the job
    job = site.submit("JFK")
    site.settle(job)
    url = site.client.get(f"/exports/{job.pk}").json()["receipt"]["signedUrl"]
    return str(url)


def concurrently(urls: list[str]) -> list[httpx2.Response]:
    barrier = threading.Barrier(len(urls))

    def send(url: str) -> httpx2.Response:
        barrier.wait(30)
        return request(url)

    with ThreadPoolExecutor(len(urls)) as clients:
        return list(clients.map(send, urls))


def outcome(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, "" if response.status_code == 302 else response.json()["code"]


def make_second_web(site: Site) -> Web:
    folder = site.folder / "second"
    folder.mkdir()
    return Web(folder, KeptSettings(folder), site.environment(**RATES))


@pytest.mark.parametrize("webs", [1, 2])
def test_one_of_a_hundred_concurrent_clients_gets_the_file(site: Site, webs: int) -> None:
    """13: with one or two web processes, after scanners have requested the link."""
    first = site.start_web(**RATES)
    site.start_worker()
    site.start_beat()
    link = link_of(site)
    seen = {name: request(link, method, headers).status_code for name, (method, headers, _) in SCANNERS.items()}
    assert seen == {name: status for name, (_, _, status) in SCANNERS.items()}
    assert Link.objects.get().used_at is None

    links = [link] * CLIENTS
    if webs == 2:
        other = make_second_web(site)
        other.start()
        try:
            links = [link if number % 2 else link.replace(first, other.url) for number in range(CLIENTS)]
            responses = concurrently(links)
        finally:
            other.kill()
    else:
        responses = concurrently(links)

    outcomes = Counter(map(outcome, responses))
    assert outcomes[302, ""] == 1
    assert outcomes.keys() <= {(302, ""), (403, "link_used"), BUSY}
    (redeemed,) = [response for response in responses if response.status_code == 302]
    file = request(redeemed.headers["Location"])
    receipt = Receipt.objects.get()
    assert (file.status_code, hashlib.sha256(file.content).hexdigest()) == (200, receipt.checksum)
    audited: dict[Any, int] = Counter(Download.objects.values_list("outcome", flat=True))
    assert (audited["redeemed"], audited["link_used"]) == (1, outcomes[403, "link_used"])


def test_only_the_latest_of_concurrently_renewed_links_gives_the_file(site: Site) -> None:
    """13: fifty clients renew the link while fifty use the old one.

    Each redeemed link returns one file, and no link works after its revocation.
    """
    site.start_web(**RATES)
    site.start_worker()
    site.start_beat()
    link = link_of(site)
    job = Link.objects.get().receipt_id
    token = site.client.headers["Authorization"]
    barrier = threading.Barrier(CLIENTS)

    def renew() -> httpx2.Response:
        return request(link.split("/download")[0] + "/link", "POST", {**USER, "Authorization": token})

    def send(number: int) -> httpx2.Response:
        barrier.wait(30)
        return request(link) if number % 2 else renew()

    with ThreadPoolExecutor(CLIENTS) as clients:
        responses = list(clients.map(send, range(CLIENTS)))

    used = [outcome(response) for response in responses[1::2]]
    busy = [response for response in responses[::2] if response.status_code != 200]
    assert {outcome(response) for response in busy} <= {BUSY}
    assert used.count((302, "")) <= 1
    assert set(used) <= {(302, ""), (403, "link_used"), (403, "link_revoked"), BUSY}
    assert Link.objects.filter(receipt_id=job).exclude(used_at=None).count() == used.count((302, ""))
    assert Link.objects.filter(receipt_id=job, used_at=None, revoked_at=None).count() == 1
    assert not Link.objects.filter(used_at__isnull=False, revoked_at__isnull=False).exists()

    latest = renew().json()["signedUrl"]
    assert outcome(request(link)) in {(403, "link_used"), (403, "link_revoked")}
    assert outcome(request(latest)) == (302, "")
