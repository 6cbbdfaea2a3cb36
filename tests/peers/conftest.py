"""Fixtures for tests against real third-party servers.

The tests need packages that `make test` does not install, so it skips them. `make mineru` installs the packages and
sets MINERU_VENV. `make model` does the same with MODEL_VENV.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from config.dev.stack import ports, processes
from config.dev.stack.process import Process

PROJECT = Path(__file__).parents[2]
VENV = os.environ.get("MINERU_VENV", "")
START_SECONDS = 60

collect_ignore_glob = [
    f"test_real_{name}.py" for name in ("mineru", "model") if not os.environ.get(f"{name.upper()}_VENV")
]

StartServer = Callable[..., str]


@pytest.fixture(scope="session")
def start_server() -> Iterator[StartServer]:
    """Return a function that starts the real `mineru-api` with some arguments and returns its address."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(running(*arguments))


@pytest.fixture(scope="session")
def mineru(start_server: StartServer) -> str:
    return start_server()


@contextmanager
def running(*arguments: str) -> Iterator[str]:
    """Run a server without models, in a folder that contains all files that it writes."""
    root = PROJECT / ".local" / "mineru"
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=root) as name:
        folder, (port,) = Path(name), ports.free(1)
        command = [str(PROJECT / VENV / "bin" / "mineru-api"), "--tier", "flash", "--host", "127.0.0.1"]
        options = ["--port", str(port), "--upload-dir", str(folder / "uploads"), *arguments]
        server = Process(
            name="mineru-api",
            command=[*command, *options],
            log=folder / "log",
            environment=environment(folder),
            folder=folder,
        )
        server.start()
        try:
            server.wait_until(lambda: processes.responds(port, "/v1/health"), limit=START_SECONDS)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.stop()


def environment(folder: Path) -> dict[str, str]:
    """Return environment variables that keep all files in the folder and prevent downloads of models."""
    (folder / "models").mkdir()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "MINERU_MODEL_SOURCE": "local",
        "MINERU_MODEL_BASE_DIR": str(folder / "models"),
    }
