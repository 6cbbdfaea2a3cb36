"""The local stack in the project's `.local/`: servers, their initial data, and Sluice's processes."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from config.dev.stack import environment, processes, servers
from config.dev.stack.kept_settings import KeptSettings, write_private
from config.dev.stack.openid_provider import OpenIDProvider
from config.dev.stack.orphan_watchdog import PROJECT, watchdog
from config.dev.stack.process import Process, StackError
from config.dev.stack.restarter import Restarter
from config.dev.stack.servers import Servers
from config.env import Environment

ROOT = PROJECT / ".local"
ADMIN = "admin"
WATCH_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A running stack. `variables` are those in `stack.env`."""

    variables: Mapping[str, str]
    servers: Servers
    web: processes.Web
    workers: Mapping[str, Process]
    beat: Process

    @property
    def url(self) -> str:
        return self.web.url

    @property
    def processes(self) -> list[Process]:
        web = [self.web.process] if self.web.process is not None else []
        return [*self.servers.processes(), *web, *self.workers.values(), self.beat]

    def check(self) -> None:
        """Raise StackError, with the end of its log, if a process has ended."""
        for process in self.processes:
            process.check()

    def watch(self, report: Callable[[str], None]) -> None:
        """Restart processes that end, forever. Servers keep their ports and data.

        `report` is called with a line for each restart. Raises StackError if a process cannot run.
        """
        restarters = [Restarter(process, report) for process in self.processes]
        while True:
            for restarter in restarters:
                restarter.check()
            time.sleep(WATCH_SECONDS)


@contextmanager
def running(
    root: Path = ROOT, *, workers: int = 2, sso: bool = False, given: Mapping[str, str] | None = None
) -> Iterator[Stack]:
    """Start the stack, and stop it in reverse order at the end.

    `given` is the shell's environment, by default `os.environ`; its values take precedence. `workers` is the number of
    processes that run exports. `sso` adds a local OpenID provider. Raises StackError if a part does not start, or if a
    stack already runs in this folder.
    """
    given = os.environ if given is None else given
    file = root / environment.FILE
    with locked(root), ExitStack() as cleanup:
        # The file exists only while a stack runs.
        file.unlink(missing_ok=True)
        cleanup.callback(file.unlink, missing_ok=True)
        watchdog().send("remove", file)
        empty(root / "metrics")
        empty(root / "tmp")
        started = cleanup.enter_context(servers.running(root, durable=True, given=given))
        defaults = environment.defaults(started)
        if sso:
            defaults |= cleanup.enter_context(provider(root, started.kept))
        complete = environment.of_processes(root, defaults, given)
        token = prepare(started, complete)
        stack = new_stack(started, complete, workers)
        cleanup.callback(stop, stack)
        start(stack)
        variables = {
            "BASE_URL": stack.url,
            **environment.effective(defaults, given),
            "ADMIN_PASSWORD": started.kept.secret(ADMIN),
            "API_TOKEN": token,
        }
        environment.write(file, variables)
        yield replace(stack, variables=variables)


@contextmanager
def provider(root: Path, kept: KeptSettings) -> Iterator[dict[str, str]]:
    """Run a local OpenID provider, and yield the settings for it."""
    server = OpenIDProvider(root, kept, durable=True)
    try:
        server.start()
        yield server.variables()
    finally:
        server.stop()


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Prevent a second stack in this folder. The kernel releases the lock when this process ends."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (root / "stack.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(
                f"A stack already runs in this folder; its URL is in {root / environment.FILE}. "
                "Stop it first, with Ctrl-C where `make up` or `make demo` runs."
            ) from None
        yield


def empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def prepare(started: Servers, variables: Mapping[str, str]) -> str:
    """Migrate, load and register the flights, and create the admin. Return an API token of the admin."""
    password, token = started.root / "admin.password", started.root / "admin.token"
    write_private(password, started.kept.secret(ADMIN))
    write_private(token, token.read_text() if token.exists() else "")
    command = ("-m", "config.dev.stack.prepare", ADMIN, str(password), str(token))
    processes.python("prepare", *command, root=started.root, environment=variables).run_to_completion()
    return token.read_text()


def new_stack(started: Servers, variables: Mapping[str, str], workers: int) -> Stack:
    """Return the stack with Sluice's processes, not yet started."""
    concurrency = {"exports": workers, "etl-ocr": ocr_workers(variables)}
    celery = {
        name: processes.worker(
            name,
            queues=processes.queue_of(name, variables),
            concurrency=concurrency.get(name, 2),
            root=started.root,
            environment=variables,
        )
        for name in processes.WORKERS
    }
    beat = processes.beat(root=started.root, environment=variables)
    web = processes.Web(started.root, started.kept, variables, beside=[*celery.values(), beat])
    return Stack(variables=variables, servers=started, web=web, workers=celery, beat=beat)


def ocr_workers(variables: Mapping[str, str]) -> int:
    """Return the number of documents parsed in parallel. Every process reports an invalid number at its start."""
    given = variables.get("ETL_WORKER_COUNT", "")
    return int(given) if given.isdecimal() and int(given) else int(Environment.model_fields["etl_worker_count"].default)


def start(stack: Stack) -> None:
    """Start Sluice's processes, and wait until the web process responds and the others run."""
    for process in (*stack.workers.values(), stack.beat):
        process.start()
    stack.web.start()


def stop(stack: Stack) -> None:
    """Stop Sluice's processes in parallel: each may need its whole grace period."""
    actions = [stack.web.stop, stack.beat.stop, *(worker.stop for worker in stack.workers.values())]
    with ThreadPoolExecutor(len(actions)) as threads:
        for future in [threads.submit(action) for action in actions]:
            future.result()
