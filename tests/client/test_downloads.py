"""Downloads with the command line: resumption, verification, and links. C3."""

import hashlib
import random
import signal
from pathlib import Path
from uuid import uuid4

import pytest
from django.contrib.auth.models import User

from config.platform import storage
from exports.delivery import links
from exports.models import Dataset, Job, Link, Receipt
from tests.client.conftest import Cli
from tests.client.fault_proxy import Action, FaultProxy, cut_after, flip_bit, problem
from tests.integration.factories import finish, make_job
from tests.waiting import wait_until

BYTES = 3_000_000


def fill(job: Job, content: bytes) -> bytes:
    """Replace the delivery of an export with these bytes, and update its receipt."""
    key, digest = f"_receipts/{uuid4()}/all.csv", hashlib.sha256(content).hexdigest()
    storage.put(key, content, content_type="text/csv")
    Receipt.objects.filter(pk=job.pk).update(
        object_key=key, checksum=digest, size_bytes=len(content), file_name="all.csv"
    )
    return content


@pytest.fixture
def content(done: Job) -> bytes:
    return fill(done, random.Random(7).randbytes(BYTES))


def parts(cli: Cli) -> list[Path]:
    return list(cli.folder.glob("*.part"))


def ranges(storage_proxy: FaultProxy) -> list[str]:
    return [each.headers.get("range", "") for each in storage_proxy.requests_to("GET", "")]


def test_the_downloaded_file_matches_the_receipt(done: Job, content: bytes, sluice: Cli) -> None:
    """C3."""
    ran = sluice("export", "download", done.pk)
    assert ran.text == "all.csv\n"
    assert (sluice.folder / "all.csv").read_bytes() == content
    assert parts(sluice) == []
    (sluice.folder / "there").mkdir()
    output = sluice("export", "download", done.pk, "-o", "there", "--json").json
    assert output["checksum"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert (sluice.folder / output["path"]).read_bytes() == content
    assert sluice("export", "download", done.pk, "-o", "-").out == content


def test_a_missing_folder_is_created(done: Job, content: bytes, sluice: Cli) -> None:
    assert sluice("export", "wait", done.pk, "--download", "a/new/").text == "a/new/all.csv\n"
    assert (sluice.folder / "a" / "new" / "all.csv").read_bytes() == content
    assert "does not exist" in sluice("export", "submit", "things", "JFK:2024-02-29", "-d", "b/all.csv", code=2).err


def test_the_token_is_sent_only_to_the_server(
    done: Job, content: bytes, sluice: Cli, api_proxy: FaultProxy, storage_proxy: FaultProxy
) -> None:
    """C3: requests to object storage and to links do not contain the token."""
    sluice("export", "download", done.pk)
    assert len(storage_proxy.seen) == 1
    assert all("authorization" not in each.headers for each in storage_proxy.seen)
    (redeemed,) = api_proxy.requests_to("GET", "/download?token=")
    assert "authorization" not in redeemed.headers


def test_an_existing_file_is_not_overwritten(done: Job, content: bytes, sluice: Cli, storage_proxy: FaultProxy) -> None:
    """C3."""
    target = sluice.folder / "all.csv"
    target.write_text("mine")
    assert "--force" in sluice("export", "download", done.pk, code=2).err
    assert "--force" in sluice("export", "submit", "things", "JFK:2024-02-29", "-d", "all.csv", code=2).err
    assert (target.read_text(), Job.objects.count(), storage_proxy.seen) == ("mine", 1, [])
    sluice("export", "download", done.pk, "--force")
    assert target.read_bytes() == content
    assert "already exists and matches the checksum" in sluice("export", "download", done.pk).err
    assert len(storage_proxy.seen) == 1


@pytest.mark.slow
@pytest.mark.parametrize("output", ["all.csv", "-"])
def test_a_broken_connection_resumes_at_its_offset(
    done: Job, content: bytes, sluice: Cli, storage_proxy: FaultProxy, output: str
) -> None:
    """C3."""
    storage_proxy.inject("GET", "", cut_after(1_000_000))
    storage_proxy.inject("GET", "", cut_after(500_000))
    ran = sluice("export", "download", done.pk, "-o", output)
    assert (ran.out if output == "-" else (sluice.folder / output).read_bytes()) == content
    assert ranges(storage_proxy) == ["", "bytes=1000000-", "bytes=1500000-"]


@pytest.mark.slow
def test_an_interrupted_download_resumes_in_the_next_run(
    done: Job, content: bytes, sluice: Cli, storage_proxy: FaultProxy
) -> None:
    """C3."""
    storage_proxy.inject("GET", "", cut_after(1_000_000))
    storage_proxy.inject("GET", "", lambda _handler, _body: wait_until(lambda: process.poll() is not None))
    process = sluice.start("export", "download", done.pk)
    wait_until(lambda: len(storage_proxy.seen) == 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"sluice export download {done.pk}" in err.decode()
    (part,) = parts(sluice)
    assert part.read_bytes() == content[:1_000_000]

    ran = sluice("export", "download", done.pk)
    assert "Resuming after 1,000,000 bytes" in ran.err
    assert (sluice.folder / "all.csv").read_bytes() == content
    assert ranges(storage_proxy)[-1] == "bytes=1000000-"
    assert parts(sluice) == []


def test_a_resumed_file_is_verified_as_a_whole(
    done: Job, content: bytes, sluice: Cli, storage_proxy: FaultProxy
) -> None:
    digest = hashlib.sha256(content).hexdigest()
    for left in (b"x" * 1000, content + b"x", b"x" * BYTES):
        (sluice.folder / f"all.csv.{digest[:8]}.part").write_bytes(left)
        sluice("export", "download", done.pk, "--force")
        assert (sluice.folder / "all.csv").read_bytes() == content
    assert ranges(storage_proxy) == ["bytes=1000-", "", "", ""]


def test_a_storage_without_ranges_sends_the_whole_file_again(
    done: Job, content: bytes, sluice: Cli, storage_proxy: FaultProxy
) -> None:
    storage_proxy.inject("GET", "", cut_after(1_000_000))
    storage_proxy.inject("GET", "", lambda handler, _: handler.answer(200, [], content))
    sluice("export", "download", done.pk)
    assert (sluice.folder / "all.csv").read_bytes() == content


@pytest.mark.slow
@pytest.mark.parametrize("action", [problem(403, "AccessDenied"), problem(503, "SlowDown"), cut_after(0)])
def test_a_refused_presigned_url_is_replaced(
    done: Job, content: bytes, sluice: Cli, storage_proxy: FaultProxy, action: Action
) -> None:
    """An expired presigned URL is refused with 403."""
    storage_proxy.inject("GET", "", cut_after(1_000_000))
    storage_proxy.inject("GET", "", action)
    sluice("export", "download", done.pk)
    assert (sluice.folder / "all.csv").read_bytes() == content


@pytest.mark.parametrize("how", ["used", "revoked", "another client's", "expired"])
def test_an_unusable_link_is_replaced(done: Job, content: bytes, sluice: Cli, api_proxy: FaultProxy, how: str) -> None:
    """C3."""
    if how == "used":
        links.redeem(done.pk, links.token_of(Link.objects.get()), links.LinkClient(address=None, user_agent=""))
    elif how == "another client's":
        done.receipt.links.update(agent="0123456789abcdef")
    else:
        api_proxy.inject("GET", "/download", problem(403, f"link_{how}"))
    sluice("export", "download", done.pk)
    assert (sluice.folder / "all.csv").read_bytes() == content
    assert len(api_proxy.requests_to("POST", "/link")) == 1


@pytest.mark.parametrize("output", ["all.csv", "-"])
def test_corrupt_bytes_are_discarded(
    done: Job, content: bytes, sluice: Cli, storage_proxy: FaultProxy, output: str
) -> None:
    """C3."""
    storage_proxy.inject("GET", "", flip_bit, times=2)
    assert "does not match the receipt" in sluice("export", "download", done.pk, "-o", output, code=11).err
    assert list(sluice.folder.glob("all.csv*")) == []


def test_surplus_bytes_are_discarded(done: Job, content: bytes, sluice: Cli, storage_proxy: FaultProxy) -> None:
    storage_proxy.inject("GET", "", lambda handler, _: handler.answer(200, [], content + b"x" * 1_000_000))
    sluice("export", "download", done.pk, code=11)
    assert list(sluice.folder.glob("all.csv*")) == []


@pytest.mark.slow
def test_a_storage_outage_keeps_the_partial_file(
    done: Job, content: bytes, sluice: Cli, storage_proxy: FaultProxy
) -> None:
    storage_proxy.inject("GET", "", cut_after(1_000_000))
    storage_proxy.inject("GET", "", cut_after(0), times=9)
    ran = sluice("export", "download", done.pk, "--patience", "1", code=10)
    assert "to resume the download" in ran.err
    (part,) = parts(sluice)
    assert part.stat().st_size == 1_000_000


def test_an_expired_receipt_is_reported(done: Job, sluice: Cli) -> None:
    Receipt.objects.filter(pk=done.pk).update(expires_at="2000-01-01T00:00Z")
    assert f"sluice export replay {done.pk}" in sluice("export", "download", done.pk, code=4).err
    assert "receipt_expired" in sluice("export", "link", done.pk, code=4).err


def test_an_export_without_a_file_is_reported(dataset: Dataset, alice: User, sluice: Cli) -> None:
    job = make_job(dataset, alice, 1)
    assert f"sluice export wait {job.pk}" in sluice("export", "download", job.pk, code=5).err


def test_file_names_from_the_server_stay_in_the_folder(done: Job, content: bytes, sluice: Cli) -> None:
    Receipt.objects.filter(pk=done.pk).update(file_name="../../all.csv")
    assert sluice("export", "download", done.pk).text == "all.csv\n"


def test_an_empty_file_is_downloaded(dataset: Dataset, alice: User, sluice: Cli) -> None:
    job = finish(make_job(dataset, alice, 1))
    fill(job, b"")
    sluice("export", "download", job.pk)
    assert (sluice.folder / "all.csv").read_bytes() == b""


@pytest.mark.slow
def test_downloading_a_large_file_uses_little_memory(done: Job, sluice: Cli) -> None:
    """C3."""
    fill(done, b"0123456789abcdef" * 64)
    small = sluice.memory("export", "download", done.pk)
    fill(done, b"0123456789abcdef" * 4_000_000)
    large = sluice.memory("export", "download", done.pk, "--force")
    assert (sluice.folder / "all.csv").stat().st_size == 64_000_000
    assert large - small < 8_000_000
