"""Exports with the command line: creation, lists, and changes. C3."""

import json

import httpx2
import pytest
from django.contrib.auth.models import Group, User

from exports.models import Allowance, Chunk, Dataset, Grant, Job
from tests.client.conftest import Cli
from tests.client.fault_proxy import FaultProxy, problem
from tests.e2e.conftest import Workers
from tests.integration.factories import end_chunk, fail_chunk, finish, make_job
from tests.integration.faulty_s3 import lose_reply

FEBRUARY = ("--keys", "JFK,LGA", "--from", "2024-02-01", "--to", "2024-02-29")
NO_KEY = "Does not match the key pattern of the dataset."
NO_PATH = "Must not contain '..', slashes, backslashes, or control characters."
UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"


def pairs_of(job_id: str) -> list[tuple[str, str]]:
    job = Job.objects.get(pk=job_id)
    return [(chunk.key, str(chunk.effective_date)) for chunk in job.chunks.order_by("seq")]


# ---- From the request to the file -----------------------------------------------------------------------------------


def test_one_command_exports_downloads_and_verifies(dataset: Dataset, workers: Workers, sluice: Cli) -> None:
    """C3: with real workers."""
    workers.start()
    ran = sluice("export", "submit", "things", *FEBRUARY, "--delivery", "single", "--download", "all.csv")

    job_id, path = ran.text.splitlines()
    assert path == "all.csv"
    lines = (sluice.folder / path).read_text().splitlines()
    assert lines[0] == "k,n,d"
    assert len(lines) == 1 + 2 * 29 * 3
    assert Job.objects.get(pk=job_id).status == "success"
    assert "SHA-256 verified" in ran.err
    again = sluice("export", "submit", "things", "JFK:2024-02-01", "--wait", "--json", "--quiet")
    assert (again.json["status"], again.json["progress"]["reused"], again.err) == ("success", 1, "")


# ---- Requests ------------------------------------------------------------------------------------------------------


def test_chunks_can_be_listed_one_by_one(dataset: Dataset, sluice: Cli) -> None:
    ran = sluice("export", "submit", "things", "JFK:2024-02-29", "LGA:2024-02-28")
    assert pairs_of(ran.word) == [("JFK", "2024-02-29"), ("LGA", "2024-02-28")]
    assert f"sluice export wait {ran.word}" in ran.err


@pytest.mark.parametrize(
    "text",
    [
        "key,effectiveDate\nJFK,2024-02-29\nLGA,2024-02-28\n",
        '\ufeffeffectiveDate;note;key\r\n2024-02-29;"a;\nb";JFK\r\n\r\n2024-02-28;;LGA',
    ],
)
@pytest.mark.parametrize("name", ["chunks.csv", "-"])
def test_chunks_can_be_read_from_csv_columns_by_name(dataset: Dataset, sluice: Cli, text: str, name: str) -> None:
    (sluice.folder / "chunks.csv").write_text(text, newline="")
    ran = sluice("export", "submit", "things", "--csv", name, stdin=text if name == "-" else "")
    assert pairs_of(ran.word) == [("JFK", "2024-02-29"), ("LGA", "2024-02-28")]


def test_every_option_reaches_the_server(dataset: Dataset, sluice: Cli) -> None:
    options = ["--format", "csv", "--compression", "gzip", "--delivery", "manifest", "--delimiter", "tab", "--bom",
               "--formula-policy", "escape", "--reuse", "never", "--no-allow-degraded",
               "--delivery-ttl", "3600", "--columns", "d, n"]  # fmt: skip
    job = Job.objects.get(pk=sluice("export", "submit", "things", *FEBRUARY, *options).word)
    assert (job.format, job.compression, job.delivery, job.reuse) == ("csv", "gzip", "manifest", "never")
    assert job.dialect == {"delimiter": "\t", "bom": True, "formula_policy": "escape"}
    assert (job.allow_degraded, job.ttl, job.columns) == (False, 3600, ["d", "n"])
    assert job.total == 58


def test_a_preview_creates_nothing(dataset: Dataset, sluice: Cli) -> None:
    shown = sluice("export", "submit", "things", *FEBRUARY, "--preview").text
    assert "58" in shown
    output = sluice("export", "submit", "things", "JFK:2024-02-29", "JFK:2024-02-29", "--preview", "--json").json
    assert output == {"totalChunks": 1, "duplicates": 1, "reusable": 0, "quotaCost": 1}
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("JFK:2024-02-29", "--csv", "-"),
        ("--keys", "JFK"),
        ("JFK",),
        ("--csv", "none.csv"),
        ("JFK:2024-02-29", "--download", "none/file"),
    ],
)
def test_usage_errors_are_reported_before_any_request(
    sluice: Cli, api_proxy: FaultProxy, arguments: tuple[str, ...]
) -> None:
    sluice("export", "submit", "things", *arguments, code=2)
    assert api_proxy.seen == []


def test_errors_in_a_file_are_reported_by_line(dataset: Dataset, sluice: Cli) -> None:
    """C3."""
    text = 'effectiveDate,note,key\n2024-02-29,"two\nlines",JFK\n2024-02-30,,JFK\n\n2024-02-28,,\n2024-02-28,,../x\n'
    (sluice.folder / "chunks.csv").write_text(text)
    output = sluice("export", "submit", "things", "--csv", "chunks.csv", "--format", "xml", code=5).err.splitlines()
    assert output == [
        "Error: chunks.csv line 4 (JFK, 2024-02-30), effectiveDate: Must be a date written YYYY-MM-DD.",
        "chunks.csv line 6 (, 2024-02-28), key: The key is empty.",
        f"chunks.csv line 7 (../x, 2024-02-28), key: {NO_PATH}",
        '--format: "xml" is not a valid choice.',
    ]  # fmt: skip


def test_errors_are_reported_by_argument(dataset: Dataset, sluice: Cli) -> None:
    output = sluice("export", "submit", "things", "JFK:2024-02-29", "a:b:2024-02-30", code=5).err
    assert "argument 2 (a:b, 2024-02-30), key: " in output
    assert "argument 2 (a:b, 2024-02-30), effectiveDate: " in output
    output = sluice(
        "export", "submit", "things", "--keys", "JFK, ../x", "--from", "2024-02-02", "--to", "x", code=5
    ).err
    assert "--keys, number 2: " in output
    assert "--to: Must be a date" in output
    output = sluice("export", "submit", "nothing", "JFK:2024-02-29", code=5).err
    assert output == "Error: DATASET: Dataset not found.\n"


@pytest.mark.parametrize(
    ("content", "output"),
    [
        (b"key;date\nJFK;2024-02-29\n", "the first line must name the columns"),
        (b"", "the first line must name the columns"),
        (b"key,effectiveDate,n\nJFK,2024-02-29,\xff\nL\xff,2024-02-29,\n", "line 3: not UTF-8"),
        (b'key,effectiveDate\nJFK,2024-02-29\n"LGA,2024-02-29\n', "line 3: unexpected end of data"),
    ],
)
def test_an_invalid_csv_file_is_reported(sluice: Cli, api_proxy: FaultProxy, content: bytes, output: str) -> None:
    (sluice.folder / "chunks.csv").write_bytes(content)
    assert output in sluice("export", "submit", "things", "--csv", "chunks.csv", code=2).err
    assert api_proxy.seen == []


@pytest.mark.slow
def test_a_long_list_uses_little_memory(dataset: Dataset, sluice: Cli) -> None:
    """C3: the server refuses the list because of its length."""
    (sluice.folder / "few.csv").write_text("key,effectiveDate\nJFK,2024-02-30\n")
    with (sluice.folder / "many.csv").open("w") as file:
        file.write("key,effectiveDate\n")
        file.writelines(f"JFK{number},2024-02-29\n" for number in range(250_000))
    few = sluice.memory("export", "submit", "things", "--csv", "few.csv", code=5)
    many = sluice.memory("export", "submit", "things", "--csv", "many.csv", code=5)
    assert many - few < 8_000_000


# ---- Idempotency ---------------------------------------------------------------------------------------------------


def test_a_lost_response_creates_no_second_export(dataset: Dataset, sluice: Cli, api_proxy: FaultProxy) -> None:
    """C3."""
    api_proxy.inject("POST", "/exports", lose_reply)
    ran = sluice("export", "submit", "things", "JFK:2024-02-29")
    assert str(Job.objects.get().pk) == ran.word
    first, second = api_proxy.requests_to("POST", "/exports")
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


def test_an_idempotency_key_creates_one_export(dataset: Dataset, sluice: Cli) -> None:
    submit = ("export", "submit", "things", "--idempotency-key", "nightly-7")
    assert sluice(*submit, "JFK:2024-02-29").word == sluice(*submit, "JFK:2024-02-29").word
    assert "idempotency_key_reused" in sluice(*submit, "JFK:2024-02-28", code=5).err


def test_requests_that_are_not_idempotent_are_not_repeated(
    dataset: Dataset, done: Job, sluice: Cli, api_proxy: FaultProxy
) -> None:
    api_proxy.inject("POST", "/replay", lose_reply)
    assert "not known whether" in sluice("export", "replay", done.pk, code=10).err
    assert Job.objects.count() == 2


@pytest.mark.slow
def test_requests_to_a_busy_server_are_retried_after_the_requested_delay(
    dataset: Dataset, sluice: Cli, api_proxy: FaultProxy
) -> None:
    api_proxy.inject("POST", "/exports", problem(429, "rate_limited", retry_after=1))
    api_proxy.inject("POST", "/exports", problem(503, "database_unavailable", retry_after=1))
    ran = sluice("export", "submit", "things", "JFK:2024-02-29")
    assert "rate_limited" in ran.err
    assert Job.objects.count() == 1
    api_proxy.inject("POST", "/exports", problem(429, "rate_limited", retry_after=3600))
    assert "rate_limited" in sluice("export", "submit", "things", "JFK:2024-02-29", code=6).err


def test_an_exhausted_quota_is_reported_at_once(dataset: Dataset, alice: User, sluice: Cli) -> None:
    Allowance.objects.create(user=alice, daily_jobs=1, daily_chunks=1)
    ran = sluice("export", "submit", "things", *FEBRUARY, code=6)
    assert "quota_exceeded" in ran.err
    assert "sluice limits" in ran.err
    output = sluice("limits", "--json").json
    assert output["chunksPerDay"]["limit"] == 1


# ---- Lists and details ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_exports_and_datasets_are_listed(dataset: Dataset, alice: User, bob: User, sluice: Cli) -> None:
    jobs = [make_job(dataset, alice, 1, key=f"K{number}") for number in range(3)]
    make_job(dataset, bob, 1)
    shown = sluice("export", "list").text.splitlines()
    assert [line.split()[0] for line in shown[1:]] == [str(job.pk) for job in reversed(jobs)]
    assert [each["jobId"] for each in sluice("export", "list", "--json", "--limit", "2").lines] == [
        str(job.pk) for job in (jobs[2], jobs[1])
    ]
    assert sluice("export", "list", "--status", "failed", "--json").out == b""
    assert "--status: Must be one of" in sluice("export", "list", "--status", "x", code=5).err
    assert "things" in sluice("export", "datasets").text
    assert sluice("export", "datasets", "--json").json["results"][0]["name"] == "things"
    assert sluice("export", "dataset", "things", "--json").json["columns"][0] == {"name": "k", "type": "text"}
    assert "k       text\nn       integer\nd       date" in sluice("export", "dataset", "things").text


def test_more_chunks_than_a_page_are_listed(dataset: Dataset, alice: User, sluice: Cli) -> None:
    job = make_job(dataset, alice, 450)
    assert len(sluice("export", "chunks", job.pk).text.splitlines()) == 451
    assert len(sluice("export", "chunks", job.pk, "--limit", "201", "--json").lines) == 201


def test_failures_are_explained(dataset: Dataset, alice: User, sluice: Cli) -> None:
    job = make_job(dataset, alice, 2)
    end_chunk()
    fail_chunk()
    shown = sluice("export", "show", job.pk).text
    assert "failed: The source database raised an error [EXPORT_SOURCE_ERROR]" in shown
    assert "JFK 2024-02-29: The source database raised an error." in shown
    assert "SQLSTATE 42883" in shown
    failed = sluice("export", "chunks", job.pk, "--status", "failed").text.splitlines()
    assert len(failed) == 2
    assert "EXPORT_SOURCE_ERROR" in failed[1]
    (chunk,) = sluice("export", "chunks", job.pk, "--status", "failed", "--json").lines
    assert (chunk["key"], chunk["effectiveDate"]) == ("JFK", "2024-02-29")


def test_the_source_message_is_shown_if_the_dataset_shows_errors(dataset: Dataset, alice: User, sluice: Cli) -> None:
    """A34."""
    job = make_job(dataset, alice, 1)
    fail_chunk()
    Chunk.objects.update(source_message="no such day\x1b[31m\nTry another.")
    assert "no such day" not in sluice("export", "show", job.pk).text
    Dataset.objects.update(show_errors=True)
    assert "  no such day\ufffd[31m\n  Try another.\n" in sluice("export", "show", job.pk).text


def test_a_dataset_shows_the_keys_that_the_user_may_export(dataset: Dataset, alice: User, sluice: Cli) -> None:
    """C12."""
    group = Group.objects.create(name="team")
    alice.groups.add(group)
    Grant.objects.create(dataset=dataset, group=group, key_pattern="J.*")
    assert "Your keys  J.*\n" in sluice("export", "dataset", "things").text
    refused = sluice("export", "submit", "things", "LGA:2024-02-29", code=5)
    assert NO_KEY in refused.err
    Grant.objects.update(group=Group.objects.create(name="others"))
    assert "things" not in sluice("export", "datasets").text


def test_events_are_json_lines(dataset: Dataset, alice: User, sluice: Cli) -> None:
    job = make_job(dataset, alice, 1)
    fail_chunk()
    output = sluice("export", "events", job.pk).lines
    assert [each["event"] for each in output] == ["snapshot", "status"]
    assert output[-1]["data"]["status"] == "failed"


def test_the_export_of_another_user_is_not_found(dataset: Dataset, bob: User, sluice: Cli) -> None:
    job = make_job(dataset, bob, 1)
    for verb in ("show", "wait", "cancel", "link", "events"):
        assert sluice("export", verb, job.pk, code=4).err == "Error: Export not found. [not_found]\n"
    assert sluice("export", "show", UNKNOWN_ID, "--json", code=4).json["code"] == "not_found"


# ---- Changes -------------------------------------------------------------------------------------------------------


def test_an_export_is_cancelled_once(dataset: Dataset, alice: User, sluice: Cli) -> None:
    job = make_job(dataset, alice, 2)
    assert sluice("export", "cancel", job.pk, "--json").json["status"] == "cancelled"
    assert "already_ended" in sluice("export", "cancel", job.pk, code=5).err
    assert "cancelled" in sluice("export", "download", job.pk, code=8).err


def test_failed_chunks_are_retried(dataset: Dataset, alice: User, sluice: Cli) -> None:
    job = make_job(dataset, alice, 2)
    fail_chunk()
    fail_chunk()
    ran = sluice("export", "retry", job.pk)
    assert ran.word == str(job.pk)
    finish(job)
    assert "not_failed" in sluice("export", "retry", job.pk, code=5).err


def test_an_export_is_replayed(done: Job, sluice: Cli) -> None:
    again = Job.objects.get(pk=sluice("export", "replay", done.pk).word)
    assert (again.pk != done.pk, again.total) == (True, done.total)


def test_a_link_works_for_the_requested_client_only(done: Job, sluice: Cli) -> None:
    url = sluice("export", "link", done.pk, "--user-agent", "fetcher/1").word
    refused = httpx2.get(url, headers={"User-Agent": "other/1"}, timeout=60, trust_env=False)
    assert (refused.status_code, refused.json()["code"]) == (403, "link_mismatch")
    fetched = httpx2.get(url, headers={"User-Agent": "fetcher/1"}, follow_redirects=True, timeout=60, trust_env=False)
    assert len(fetched.content) == done.receipt.size_bytes
    output = sluice("export", "link", done.pk, "--json").json
    assert json.dumps(output).count("token=") == 1
