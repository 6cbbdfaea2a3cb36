"""Everybody wants the same link at once. Row 13 of docs/reliability.md."""

import hashlib
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from config.dev.stack.identity import Identity
from config.dev.stack.processes import Web
from exports.models import Download, Link, Receipt
from tests.chaos.site import Site

CLIENTS = 100
USER = {"User-Agent": "curl/8.5"}
# Who looks at links before people do: each with what it sends, and what it is answered.
SCANNERS: dict[str, tuple[str, dict[str, str], int]] = {
    "HEAD": ("HEAD", USER, 200),
    "a browser that prefetches": ("GET", {**USER, "Sec-Purpose": "prefetch"}, 204),
    "one that prerenders": ("GET", {**USER, "Sec-Purpose": "prefetch;prerender"}, 204),
    "an older one": ("GET", {**USER, "Purpose": "prefetch"}, 204),
    "a scanner of mails": ("GET", {"User-Agent": "Mozilla/5.0 (compatible; LinkScanner/1.0)"}, 403),
    "a preview of a chat": ("GET", {"User-Agent": "facebookexternalhit/1.1"}, 403),
    "a scanner's HEAD": ("HEAD", {"User-Agent": "Mozilla/5.0 (compatible; LinkScanner/1.0)"}, 403),
    "OPTIONS": ("OPTIONS", USER, 405),
    "POST": ("POST", USER, 405),
}
# A hundred at once may have to wait longer for a connection to the database than a busy machine lets them.
BUSY = (503, "database_unavailable")
RATES = {"EXPORT_DOWNLOAD_RATE": "1000000/min"}


def ask(url: str, method: str = "GET", headers: dict[str, str] = USER) -> httpx2.Response:
    """Ask over a connection of our own, as each of the hundred has."""
    with httpx2.Client(trust_env=False, timeout=60) as client:
        return client.request(method, url, headers=headers)


def link_of(site: Site) -> str:
    site.client.headers.update(USER)  # the link is for the client that made the job
    job = site.submit("JFK")
    site.settle(job)
    url = site.client.get(f"/exports/{job.pk}").json()["receipt"]["signedUrl"]
    return str(url)


def at_once(urls: list[str]) -> list[httpx2.Response]:
    barrier = threading.Barrier(len(urls))

    def go(url: str) -> httpx2.Response:
        barrier.wait(30)
        return ask(url)

    with ThreadPoolExecutor(len(urls)) as clients:
        return list(clients.map(go, urls))


def outcome(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, "" if answer.status_code == 302 else answer.json()["code"]


def second_web(site: Site) -> Web:
    folder = site.folder / "second"
    folder.mkdir()
    return Web(folder, Identity(folder), site.environment(**RATES))


@pytest.mark.parametrize("webs", [1, 2])
def test_of_a_hundred_who_use_a_link_at_once_one_gets_the_file(site: Site, webs: int) -> None:
    """13: after everybody has looked at it who does; against one web process, and against two."""
    first = site.start_web(**RATES)
    site.start_worker()
    site.start_beat()
    link = link_of(site)
    seen = {name: ask(link, method, headers).status_code for name, (method, headers, _) in SCANNERS.items()}
    assert seen == {name: status for name, (_, _, status) in SCANNERS.items()}
    assert Link.objects.get().used_at is None

    links = [link] * CLIENTS
    if webs == 2:
        other = second_web(site)
        other.start()
        try:
            links = [link if number % 2 else link.replace(first, other.url) for number in range(CLIENTS)]
            answers = at_once(links)
        finally:
            other.kill()
    else:
        answers = at_once(links)

    told = Counter(map(outcome, answers))
    assert told[302, ""] == 1
    assert told.keys() <= {(302, ""), (403, "link_used"), BUSY}
    (lucky,) = [answer for answer in answers if answer.status_code == 302]
    file = ask(lucky.headers["Location"])
    receipt = Receipt.objects.get()
    assert (file.status_code, hashlib.sha256(file.content).hexdigest()) == (200, receipt.checksum)
    audited: dict[Any, int] = Counter(Download.objects.values_list("outcome", flat=True))
    assert (audited["redeemed"], audited["link_used"]) == (1, told[403, "link_used"])


def test_of_links_that_replace_each_other_one_at_a_time_gives_the_file(site: Site) -> None:
    """13: fresh links are made while the old ones are used, fifty of each at once: each that was used gave one file,
    and none after it was revoked."""
    site.start_web(**RATES)
    site.start_worker()
    site.start_beat()
    link = link_of(site)
    job = Link.objects.get().receipt_id
    token = site.client.headers["Authorization"]
    barrier = threading.Barrier(CLIENTS)

    def go(number: int) -> httpx2.Response:
        barrier.wait(30)
        if number % 2:
            return ask(link)
        return ask(link.split("/download")[0] + "/link", "POST", {**USER, "Authorization": token})

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(go, range(CLIENTS)))

    used = [outcome(answer) for answer in answers[1::2]]
    busy = [answer for answer in answers[::2] if answer.status_code != 200]
    assert {outcome(answer) for answer in busy} <= {BUSY}
    assert used.count((302, "")) <= 1
    assert set(used) <= {(302, ""), (403, "link_used"), (403, "link_revoked"), BUSY}
    assert Link.objects.filter(receipt_id=job).exclude(used_at=None).count() == used.count((302, ""))
    assert Link.objects.filter(receipt_id=job, used_at=None, revoked_at=None).count() == 1
    assert not Link.objects.filter(used_at__isnull=False, revoked_at__isnull=False).exists()
