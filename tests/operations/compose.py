"""docker/compose.yaml without Docker: its commands and health checks run with the tests' servers."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from config.dev.stack import ports
from config.dev.stack.orphan_watchdog import PROJECT
from config.dev.stack.process import Process
from tests.waiting import wait_until

DOCKER = PROJECT / "docker"
TEXT = (DOCKER / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SLUICE_SERVICES = [
    name for name, service in SERVICES.items() if service["image"].startswith(("sluice:", "sluice-ocr:"))
]
SECRETS = "/run/secrets"


# ---- Interpolation ------------------------------------------------------------------------------------------------
def resolved(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with its variables interpolated: `$$`, `${A}`, `${A:-default}`, `${A:+other}`, `${A:?}`, nested."""
    out, rest = "", text
    while "$" in rest:
        before, _, rest = rest.partition("$")
        out += before
        if rest.startswith("$"):
            out, rest = f"{out}$", rest[1:]
            continue
        assert rest.startswith("{"), f"${rest[:20]}"
        inside, rest = split_at_closing_brace(rest)
        found = re.fullmatch(r"(\w+)(?:(:[-+?])(.*))?", inside, re.DOTALL)
        assert found, inside
        name, operator, other = found.groups()
        value = variables.get(name, "")
        if operator == ":-":
            value = value or resolved(other, variables)
        elif operator == ":+":
            value = value and resolved(other, variables)
        assert value or operator != ":?", f"{name} is required"
        out += value
    return out + rest


def split_at_closing_brace(text: str) -> tuple[str, str]:
    """Return the text inside the first, possibly nested braces, and the text after them."""
    depth = 0
    for place, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[1:place], text[place + 1 :]
    raise ValueError(text)


def parse_dotenv(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([A-Z][A-Z0-9_]*)=(.*)$", text, re.MULTILINE))


def seconds(duration: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([sm])", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


# ---- Containers as processes ----------------------------------------------------------------------------------------
@dataclass(kw_only=True)
class Machine:
    """The services of docker/compose.yaml as local processes, with their files in one folder.

    `dotenv` contains the operator's variables in .env. `replacements` maps container hosts, ports, and folders to local
    ones.
    """

    folder: Path
    dotenv: dict[str, str] = field(default_factory=dict)
    replacements: dict[str, str] = field(default_factory=dict)
    web_port: int = 0
    path: str = field(default_factory=lambda: os.environ["PATH"])
    running: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        subprocess.run(["sh", DOCKER / "secrets.sh", self.secrets], check=True, stdout=subprocess.DEVNULL)
        self.dotenv = parse_dotenv((DOCKER / ".env.example").read_text()) | self.dotenv
        for container_path in ("/var/lib/metrics", "/var/tmp"):  # noqa: S108 - paths in the containers
            local_path = self.folder / "mounts" / container_path.rpartition("/")[2]
            local_path.mkdir(parents=True)
            self.replacements[container_path] = str(local_path)
        self.replacements["/tmp/schedule"] = str(self.folder / "schedule")  # noqa: S108  each container has its own /tmp

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets"

    def secret(self, name: str) -> Path:
        """Return the file that is mounted for a secret."""
        file = resolved(COMPOSE["secrets"][name]["file"], self.dotenv)
        return self.secrets / file.removeprefix("./secrets/") if file.startswith("./") else Path(file)

    def with_local_addresses(self, text: str, service: str) -> str:
        """Replace the container's hosts, ports, and folders in a text with local ones."""
        for name in SERVICES[service].get("secrets", []):
            text = re.sub(rf"{SECRETS}/{name}\b", str(self.secret(name)), text)
        assert SECRETS not in text, f"{service} uses a secret that it does not declare: {text}"
        for theirs, ours in self.replacements.items():
            text = text.replace(theirs, ours)
        return text

    def environment(self, service: str) -> dict[str, str]:
        declared = SERVICES[service].get("environment", {})
        passed = {
            name: self.dotenv.get(name) if value is None else resolved(value, self.dotenv)
            for name, value in declared.items()
        }
        return {
            "PATH": self.path,
            **{name: self.with_local_addresses(value, service) for name, value in passed.items() if value is not None},
        }

    def command(self, service: str, key: str = "command") -> list[str]:
        written = SERVICES[service].get(key, [])
        if isinstance(written, str):
            return shlex.split(self.with_local_addresses(resolved(written, self.dotenv), service))
        return [self.with_local_addresses(resolved(part, self.dotenv), service) for part in written]

    def start(self, service: str, **variables: str) -> Process:
        """Start the container's command with the tests' interpreter.

        `variables` override the container's environment, such as PATH.
        """
        command = [*self.command(service, "entrypoint"), *self.command(service)]
        process = Process(
            name=service,
            command=[sys.executable if command[0] == "python" else command[0], *command[1:]],
            log=self.folder / "logs" / f"{service}.log",
            environment=self.environment(service) | variables,
            stop_signal=signal.Signals[SERVICES[service].get("stop_signal", "SIGTERM")],
        )
        process.start()
        self.running.append(process)
        return process

    def check(self, service: str) -> subprocess.CompletedProcess[str]:
        """Run the service's health check with local addresses, within its timeout."""
        check = SERVICES[service]["healthcheck"]
        kind, *test = [self.with_local_addresses(resolved(part, self.dotenv), service) for part in check["test"]]
        command: Sequence[str] = test if kind == "CMD" else ["sh", "-c", *test]
        if command[0] == "python":
            command = [sys.executable, *command[1:]]
        if command[0] == "worker-health":
            command = [sys.executable, str(DOCKER / "worker_health.py")]
        try:
            return subprocess.run(
                command,
                env=self.environment(service),
                check=False,
                capture_output=True,
                text=True,
                timeout=seconds(check["timeout"]),
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1)

    def is_healthy(self, service: str) -> bool:
        return self.check(service).returncode == 0

    def wait_until_healthy(self, service: str) -> None:
        [process] = [process for process in self.running if process.name == service]

        def is_healthy() -> bool:
            process.check()
            return self.is_healthy(service)

        wait_until(is_healthy, limit=90, every=0.2)

    def kill(self) -> None:
        for process in self.running:
            process.kill()


@contextmanager
def machine_with_servers(folder: Path, variables: Mapping[str, str]) -> Iterator[Machine]:
    """Yield a machine that uses the tests' servers. `variables` are Sluice's settings for these servers."""
    [port] = ports.free(1)
    machine = Machine(folder=folder, web_port=port)
    for name in ("REDIS_URL", "DATABASE_URL", *(name for name in variables if name.startswith("S3_"))):
        if (machine.secrets / f"{name.lower()}.txt").exists():
            (machine.secrets / f"{name.lower()}.txt").write_text(f"{variables[name]}\n")
    (machine.secrets / "source_database_url.txt").write_text(f"{variables['SOURCE_DATABASE_URL']}\n")
    machine.dotenv |= {
        "SOURCE_DATABASE_URL_FILE": "./secrets/source_database_url.txt",
        "S3_ENDPOINT_URL": variables["S3_ENDPOINT_URL"],
        "S3_BUCKET": variables["S3_BUCKET"],
    }
    machine.replacements |= {
        "0.0.0.0": "127.0.0.1",  # noqa: S104
        "--port 8000": f"--port {port}",
        "127.0.0.1:8000": f"127.0.0.1:{port}",
        "172.30.83.2/32": "127.0.0.1/32",
    }
    try:
        yield machine
    finally:
        machine.kill()
