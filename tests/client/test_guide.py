"""The commands in `docs/command-line.md`, run in order and compared with the output on the page. C3.

The environment variable `REWRITE_GUIDE=1` updates the output on the page.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import psycopg
import pytest

from exports.models import Dataset
from tests.client.conftest import PROJECT, Cli
from tests.client.fault_proxy import FaultProxy
from tests.e2e.conftest import Workers

PAGE = PROJECT / "docs" / "command-line.md"
HOME, SERVER = "/home/you", "http://127.0.0.1:8000"
BLOCK = re.compile(r"(?<=^```console\n)(.+?)(?=^```$)", re.MULTILINE | re.DOTALL)
# Values that differ between runs, and progress lines, whose number varies.
VARIES = (
    (re.compile(r"^(Exporting|Downloading|Document \d+): .*\n", re.MULTILINE), ""),
    (re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"), "JOB"),
    (re.compile(r"[0-9a-f]{64}"), "DIGEST"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"), "MOMENT"),
    (re.compile(r"(?<![-\d])[\d,.]*\d(?![-\d])"), "NUMBER"),
    (re.compile(r"[ \t]+"), " "),
)
FLIGHTS = """
CREATE FUNCTION data.flights_for(key text, effective_date date)
RETURNS TABLE (day date, origin text, flight int, seats int) LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF key = 'XXX' THEN
        RAISE EXCEPTION 'no such airport' USING ERRCODE = '0A000';
    END IF;
    RETURN QUERY SELECT effective_date, key, 100 + n, 100 + 7 * n FROM generate_series(1, 25) n;
END $$
"""
FILES = {
    "chunks.csv": "key,effectiveDate\nJFK,2013-02-15\nLGA,2013-02-16\n",
    "bad.csv": "key,effectiveDate\nJFK,2013-02-15\nLGA,2013-02-30\n../etc,2013-02-15\n",
    "note.md": "Total: 12.00 EUR\n",
    "expected.json": '{\n  "total": "12.00 EUR"\n}\n',
    "totals.json": json.dumps(
        {
            "name": "Totals",
            "system_prompt": "You read invoices.",
            "json_schema": {"type": "object", "properties": {"total": {"type": "string"}}, "required": ["total"]},
        },
        indent=2,
    )
    + "\n",
}


def blocks() -> list[list[tuple[str, str]]]:
    """Return the commands of each block with their output on the page."""
    return [
        [
            (command, output)
            for command, _, output in (part.partition("\n") for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:])
        ]
        for text in BLOCK.findall(PAGE.read_text())
    ]


@pytest.fixture
def flights(source_db: psycopg.Connection, slots: int) -> Dataset:
    source_db.execute(FLIGHTS)
    return Dataset.objects.create(name="flights", function="data.flights_for", base_path="flights")


@pytest.fixture
def reader(sluice: Cli) -> Cli:
    """The environment of a reader: the files of the page, a token file, and `sluice` on the PATH."""
    home = sluice.folder / "home"
    (home / "files").mkdir(parents=True)
    for name, text in FILES.items():
        (home / name).write_text(text)
    (home / "token.txt").write_text(sluice.token)
    shutil.copy(PROJECT / "config" / "dev" / "demo" / "documents" / "invoice.pdf", home)
    program = sluice.folder / "bin" / "sluice"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m sluice "$@"\n')
    program.chmod(0o755)
    return Cli(
        url="",
        token="",
        folder=home,
        variables={"XDG_CONFIG_HOME": f"{home}/.config", "PATH": f"{program.parent}:{os.environ['PATH']}"},
    )


def run(reader: Cli, server: str, commands: list[str]) -> list[str]:
    """Run the commands in one shell, and return the output of each."""
    between = "--- next ---"
    script = "\n".join(f"{{ {command}\n}} 2>&1; echo '{between}'" for command in commands).replace(SERVER, server)
    if not shutil.which("jq"):
        script = re.sub(r"\| jq .*", "> /dev/null", script)
    ran = subprocess.run(
        ["bash", "-c", script], cwd=reader.folder, env=reader.environment(), capture_output=True, check=False
    )
    assert ran.stderr == b""
    output = ran.stdout.decode().replace(server, SERVER).replace(str(reader.folder), HOME)
    return output.split(f"{between}\n")[:-1]


def normalized(output: str) -> str:
    for pattern, instead in VARIES:
        output = pattern.sub(instead, output)
    return output.strip()


@pytest.mark.slow
def test_every_command_prints_the_output_on_the_page(
    flights: Dataset, workers: Workers, reader: Cli, api_proxy: FaultProxy
) -> None:
    """C3."""
    workers.start("exports,bundles,etl-ocr,etl-postprocess")
    examples = [each for block in blocks() for each in block]
    outputs = run(reader, api_proxy.url, [command for command, _ in examples])
    assert len(outputs) == len(examples)
    if os.environ.get("REWRITE_GUIDE"):
        rewrite(outputs)
        return
    for (command, expected), output in zip(examples, outputs, strict=True):
        if shutil.which("jq") or "| jq" not in command:
            assert normalized(output) == normalized(expected), command


def rewrite(outputs: list[str]) -> None:
    rest = iter(outputs)
    progress = VARIES[0][0]
    texts = iter(
        ["".join(f"$ {command}\n{progress.sub('', next(rest))}" for command, _ in block) for block in blocks()]
    )
    PAGE.write_text(BLOCK.sub(lambda _: next(texts), PAGE.read_text()))


def test_the_page_and_the_help_list_the_same_exit_codes(sluice: Cli) -> None:
    """C3."""
    listed = dict(re.findall(r"^\| (\d+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    helped = dict(re.findall(r"^ +(\d+)  (.+)$", sluice("--help").text, re.MULTILINE))
    assert listed == helped
    assert len(listed) == 13


def test_every_command_is_on_the_page(sluice: Cli) -> None:
    """C3."""
    page = PAGE.read_text()
    for group in ("", "export", "export schedule", "document", "document batch", "rule"):
        output = sluice(*group.split(), "--help").text.partition("Commands:")[2].partition("Exit codes")[0]
        names = re.findall(r"^  ([\w-]+) ", output, re.MULTILINE)
        assert len(names) > 5, group
        for name in names:
            assert re.search(rf"(sluice {group} {name}|`{name}`)".replace("  ", " "), page), f"{group} {name}"
