"""A real web process on the test's database, gates before it and before the object storage, and the command line as a
process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from config.dev.stack.processes import Web
from exports.models import Dataset, Job
from tests.client import gate
from tests.client.gate import Gate
from tests.e2e.conftest import workers as workers  # noqa: PLC0414 - a fixture
from tests.integration.factories import finish, make_job
from tests.serving import serving, variables

PROJECT = Path(__file__).parents[2]
SOURCE = PROJECT / "docs" / "clients" / "sluice" / "src"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def word(self) -> str:
        """The last line of stdout: an id, a path."""
        return self.text.splitlines()[-1]

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.text.splitlines()]


@dataclass(kw_only=True)
class Cli:
    """Runs `sluice`: signed in by the environment, in a folder of its own, with nothing else from this shell."""

    url: str
    token: str
    folder: Path
    more: dict[str, str] = field(default_factory=dict)
    module: tuple[str, ...] = ("-m", "sluice")

    def environment(self) -> dict[str, str]:
        account = {"SLUICE_URL": self.url, "SLUICE_TOKEN": self.token}
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SOURCE),
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "LANG": "C.UTF-8",
            **{name: value for name, value in (account | self.more).items() if value},
        }

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", *self.module, *map(str, arguments)],
            cwd=self.folder, env=self.environment(),
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )  # fmt: skip

    def __call__(self, *arguments: object, stdin: str | None = None, code: int | None = 0, limit: float = 120) -> Ran:
        """Run a command to its end, which must have this exit code."""
        out, err = self.folder / ".out", self.folder / ".err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            given = subprocess.PIPE if stdin is not None else subprocess.DEVNULL
            with self.start(*arguments, stdin=given, stdout=stdout, stderr=stderr) as process:
                if process.stdin:
                    process.stdin.write((stdin or "").encode())
                    process.stdin.close()
                process.wait(limit)
        ran = Ran(code=process.returncode, out=out.read_bytes(), err=err.read_text())
        assert code is None or ran.code == code, ran
        assert "Traceback" not in ran.err
        assert not self.token or self.token not in ran.err + ran.out.decode(errors="replace")
        return ran

    def memory(self, *arguments: object, code: int = 0) -> int:
        """Run a command, and return its largest resident set in bytes."""
        measured = replace(self, module=("-c", MEASURED))
        ran = measured(*arguments, code=code)
        return 1024 * int(ran.err.splitlines()[-1].split()[1])


# What a child inherits counts as its own in `ru_maxrss`: the kernel's note of a process itself does not have that.
MEASURED = """
import atexit, pathlib, sys
status = pathlib.Path("/proc/self/status").read_text
atexit.register(lambda: print(*[line for line in status().splitlines() if "VmHWM" in line], file=sys.stderr))
from sluice.app import main
main()
"""


@pytest.fixture(scope="session")
def storage_gate() -> Iterator[Gate]:
    with gate.running(os.environ["S3_ENDPOINT_URL"]) as running:
        yield running


@pytest.fixture(scope="session")
def web(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory, storage_gate: Gate) -> Iterator[Web]:
    root = tmp_path_factory.mktemp("web")
    ours = {"S3_PUBLIC_ENDPOINT_URL": storage_gate.url, "PROMETHEUS_MULTIPROC_DIR": str(root / "metrics")}
    with serving(root, variables(root, **ours)) as running:
        yield running


@pytest.fixture(scope="session")
def web_gate(web: Web) -> Iterator[Gate]:
    with gate.running(web.url) as running:
        yield running


@pytest.fixture
def door(web_gate: Gate) -> Gate:
    """The way to the web process."""
    web_gate.reset()
    return web_gate


@pytest.fixture
def store(storage_gate: Gate) -> Gate:
    """The way to the object storage."""
    storage_gate.reset()
    return storage_gate


@pytest.fixture
def sluice(door: Gate, store: Gate, token: str, tmp_path: Path) -> Cli:
    """The command line of alice."""
    return Cli(url=door.url, token=token, folder=tmp_path)


@pytest.fixture
def done(dataset: Dataset, alice: User) -> Job:
    """An export of alice's that succeeded."""
    return finish(make_job(dataset, alice, 3))
