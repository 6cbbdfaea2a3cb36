"""Fixtures for the client: a real web process, proxies in front of it and of object storage, and the command line."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.auth.models import User

from config.dev.stack.processes import Web
from exports.models import Dataset, Job
from tests.client import fault_proxy
from tests.client.fault_proxy import FaultProxy
from tests.e2e.conftest import workers as workers  # noqa: PLC0414 - a fixture
from tests.integration.factories import finish, make_job
from tests.serving import serving, variables

PROJECT = Path(__file__).parents[2]
SOURCE = PROJECT / "docs" / "clients" / "sluice" / "src"
sys.path.append(str(SOURCE))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The exit code and the output of a finished command."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def word(self) -> str:
        """The last line of stdout: an ID or a path."""
        return self.text.splitlines()[-1]

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.text.splitlines()]


@dataclass(kw_only=True)
class Cli:
    """Runner of the command `sluice` in a separate folder, signed in by environment variables. It does not inherit
    other variables. `variables`: additional variables.

    A call runs the command in this process, with separate streams and variables, because starting a process takes
    longer than most commands. `start` and `memory` start a process.
    """

    url: str
    token: str
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    module: tuple[str, ...] = ("-m", "sluice")

    def environment(self) -> dict[str, str]:
        account = {"SLUICE_URL": self.url, "SLUICE_TOKEN": self.token}
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SOURCE),
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "LANG": "C.UTF-8",
            **{name: value for name, value in (account | self.variables).items() if value},
        }

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", *self.module, *map(str, arguments)],
            cwd=self.folder, env=self.environment(),
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )  # fmt: skip

    def __call__(self, *arguments: object, stdin: str = "", code: int | None = 0) -> CommandResult:
        """Run a command, and assert its exit code. None permits any."""
        from sluice.cli.app import main

        out, err = self.folder / ".out", self.folder / ".err"
        given = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
        with ExitStack() as stack:
            stack.enter_context(chdir(self.folder))
            stack.enter_context(patch.dict(os.environ, self.environment(), clear=True))
            stack.enter_context(patch.multiple(sys, argv=["sluice", *map(str, arguments)], stdin=given))
            stack.enter_context(redirect_stdout(stack.enter_context(out.open("w", encoding="utf-8"))))
            stack.enter_context(redirect_stderr(stack.enter_context(err.open("w", encoding="utf-8"))))
            ended: int | str | None = 0
            try:
                main()
            except SystemExit as end:
                ended = end.code
        ran = CommandResult(code=int(ended or 0), out=out.read_bytes(), err=err.read_text())
        return self.checked(ran, code=code)

    def checked(self, ran: CommandResult, *, code: int | None) -> CommandResult:
        assert code is None or ran.code == code, ran
        assert "Traceback" not in ran.err
        assert not self.token or self.token not in ran.err + ran.out.decode(errors="replace")
        return ran

    def memory(self, *arguments: object, code: int = 0) -> int:
        """Run a command, and return its peak resident set size in bytes."""
        with replace(self, module=("-c", MEASURED)).start(*arguments) as process:
            out, err = process.communicate(timeout=120)
        ran = self.checked(CommandResult(code=process.returncode, out=out, err=err.decode()), code=code)
        return 1024 * int(ran.err.splitlines()[-1].split()[1])


def read_all(terminal: int) -> bytes:
    """Read the output on a pseudo-terminal up to its end, and close the terminal."""
    output = b""
    with suppress(OSError):  # EIO: the other end was closed
        while block := os.read(terminal, 10_000):
            output += block
    os.close(terminal)
    return output


# `ru_maxrss` includes memory that was inherited at the fork, but VmHWM does not.
MEASURED = """
import atexit, pathlib, sys
status = pathlib.Path("/proc/self/status").read_text
atexit.register(lambda: print(*[line for line in status().splitlines() if "VmHWM" in line], file=sys.stderr))
from sluice.cli.app import main
main()
"""


@pytest.fixture(scope="session")
def object_storage_proxy() -> Iterator[FaultProxy]:
    with fault_proxy.running(os.environ["S3_ENDPOINT_URL"]) as running:
        yield running


@pytest.fixture(scope="session")
def web(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory, object_storage_proxy: FaultProxy
) -> Iterator[Web]:
    root = tmp_path_factory.mktemp("web")
    ours = {
        "S3_PUBLIC_ENDPOINT_URL": object_storage_proxy.url,
        "PROMETHEUS_MULTIPROC_DIR": str(root / "metrics"),
        "EXPORT_WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",  # webhook URLs of tests have loopback addresses
    }
    with serving(root, variables(root, **ours)) as running:
        yield running


@pytest.fixture(scope="session")
def web_proxy(web: Web) -> Iterator[FaultProxy]:
    with fault_proxy.running(web.url) as running:
        yield running


@pytest.fixture
def api_proxy(web_proxy: FaultProxy) -> FaultProxy:
    """The proxy in front of the web process."""
    web_proxy.reset()
    return web_proxy


@pytest.fixture
def storage_proxy(object_storage_proxy: FaultProxy) -> FaultProxy:
    """The proxy in front of object storage."""
    object_storage_proxy.reset()
    return object_storage_proxy


@pytest.fixture
def sluice(api_proxy: FaultProxy, storage_proxy: FaultProxy, token: str, tmp_path: Path) -> Cli:
    """The command line, signed in as alice."""
    return Cli(url=api_proxy.url, token=token, folder=tmp_path)


@pytest.fixture
def done(dataset: Dataset, alice: User) -> Job:
    """A finished export of alice."""
    return finish(make_job(dataset, alice, 3))
