"""Permissions of the reader process after a malicious file has compromised it (B12, B13)."""

import ctypes
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from etl.providers.local import sandbox
from tests import samples

PROJECT = Path(__file__).parents[2]
FEWER_STEPS = [[], ["deny_files"], ["drop_privileges"], ["deny_network"]]

needs_landlock = pytest.mark.skipif(
    ctypes.CDLL(None).syscall(sandbox.LANDLOCK_CREATE_RULESET, None, 0, sandbox.LANDLOCK_VERSION) < 1,
    reason="this kernel has no Landlock",
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="requires root")


def confined(expression: str, *, without: list[str] | None = None, **variables: str) -> str:
    """Evaluate an expression in a sandboxed process, and return its output. `without`: steps of the sandbox to omit."""
    omitted = "".join(f"sandbox.{name} = lambda *_: None\n" for name in without or [])
    code = f"""
import ctypes, os, pathlib, socket, sys
from etl.providers.local import sandbox
{omitted}sandbox.confine()  # without `confine_further`, so that these steps alone deny access
try:
    print({expression})
except OSError as error:
    print(type(error).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=True,
        env={"PATH": os.environ["PATH"], **variables},
    )  # fmt: skip
    return done.stdout.strip()


@needs_root
@pytest.mark.parametrize("without", FEWER_STEPS, ids=str)
@pytest.mark.parametrize("name", ["environ", "mem"])
def test_the_sandbox_cannot_inspect_its_worker(name: str, without: list[str]) -> None:
    """B12: the worker has all secrets. If a system does not support one of the steps, another step denies access."""
    assert confined(f"open(f'/proc/{{os.getppid()}}/{name}', 'rb').read(9)", without=without) == "PermissionError"


@needs_landlock
@pytest.mark.parametrize(
    "expression",
    [
        "open('/etc/passwd').read()",
        f"open({str(PROJECT / 'pyproject.toml')!r}).read()",
        "os.listdir('/proc/self')",
        "os.listdir(os.environ['TARGET'])",
        "os.unlink(os.environ['TARGET'] + '/document')",
        "os.mkdir(os.environ['TARGET'] + '/folder')",
        "os.execv(sys.executable, ['python', '-c', 'print(1)'])",
        "os.kill(os.getppid(), 0)",
    ],
)
def test_the_sandbox_reads_only_its_own_files(expression: str, tmp_path: Path) -> None:
    """B12."""
    tmp_path.joinpath("document").write_bytes(b"secret")
    assert confined(expression, TARGET=str(tmp_path)) == "PermissionError"
    assert tmp_path.joinpath("document").exists()


@needs_root
@pytest.mark.parametrize("without", FEWER_STEPS[:2], ids=str)
def test_the_sandbox_has_no_network(without: list[str]) -> None:
    """B13: also on a system that does not support one of the steps."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert confined(f"socket.create_connection(('127.0.0.1', {port}), 5)", without=without) in {
            "OSError",
            "PermissionError",
        }


@needs_root
def test_the_sandbox_cannot_become_root() -> None:
    assert confined("os.getresuid(), os.getgroups()") == f"{(sandbox.SANDBOX_UID,) * 3} []"
    facts = confined("open('/proc/self/status').read()", without=["deny_files"])
    assert "NoNewPrivs:\t1" in facts
    reading = 1 << sandbox.CAP_DAC_READ_SEARCH | 1 << sandbox.CAP_DAC_OVERRIDE
    assert int(facts.partition("CapPrm:\t")[2].split()[0], 16) & ~reading == 0


@pytest.mark.slow
@pytest.mark.parametrize("without", FEWER_STEPS[:2], ids=str)
def test_the_sandbox_can_read_documents(without: list[str], tmp_path: Path) -> None:
    """B13: including OCR, which imports most libraries late. It leaves no files in the home directory."""
    omitted = "".join(f"sandbox.{name} = lambda *_: None\n" for name in without)
    code = f"""
import json, sys
from etl.providers.local import sandbox
{omitted}document = open({str(samples.sample("notice-zh-scan.jpg"))!r}, "rb")
sandbox.confine()
sandbox.confine_further()
from etl.providers.local.reading import read
from etl.providers.local.ocr_engine import Engine
limits = dict(pages=9, pixels=10**8, text=10**8)
for message in read(Engine(), dict(kind="jpg", limits=limits), document):
    print(json.dumps(message))
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=120, check=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ORT_DISABLE_TELEMETRY": "1"},
    )  # fmt: skip
    assert '"method": "ocr"' in done.stdout
    assert done.stdout.endswith('{"done": true, "truncated": false}\n')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("signal", ["celeryd_init", "worker_process_init", "beat_init"])
@pytest.mark.slow
def test_celery_processes_hide_their_secrets(signal: str) -> None:
    """B12: from other processes of the same user, such as the reader process."""
    code = f"""
import ctypes, config
from celery import signals
import config.celery
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
signals.{signal}.send("anybody", instance=None, conf=None, options=None)
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1", "0"], done.stderr
