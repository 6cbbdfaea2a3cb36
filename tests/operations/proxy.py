"""The proxy of docker/compose.yaml without Docker: docker/proxy/start.sh with Debian's nginx, on free ports."""

import os
import re
import shutil
from collections.abc import Mapping

from config.dev.stack import ports
from config.dev.stack.process import Process
from tests.operations import debian
from tests.operations.compose import DOCKER, SERVICES, Machine

PORTS = (3000, 5555, 8080, 8081, 8333, 8443, 9090, 15672)


class Proxy:
    """The proxy of a machine.

    `replacements` maps texts of the configuration to others, mainly the addresses of upstream servers.
    """

    def __init__(self, machine: Machine, replacements: Mapping[str, str]) -> None:
        self.machine = machine
        self.replacements = dict(replacements)
        self.ports = dict(zip(PORTS, ports.free(len(PORTS)), strict=True))
        self.folder = machine.folder / "proxy"
        self.process: Process | None = None
        machine.replacements |= {
            "/etc/proxy": str(self.folder / "etc"),
            "127.0.0.1:8081": f"127.0.0.1:{self.ports[8081]}",
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[8080]}"

    @property
    def files(self) -> str:
        return f"http://127.0.0.1:{self.ports[8333]}"

    def start(self) -> Process:
        shutil.copytree(DOCKER / "proxy", self.folder / "etc")
        for file in (self.folder / "etc").iterdir():
            file.write_text(self.local(file.read_text()))
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "nginx").symlink_to(debian.program("nginx"))
        libraries = debian.environment().get("LD_LIBRARY_PATH", "")
        self.process = self.machine.start("proxy", PATH=f"{programs}:{os.environ['PATH']}", LD_LIBRARY_PATH=libraries)
        return self.process

    def local(self, text: str) -> str:
        """Return the text of a configuration file with local values instead of the container's."""
        text = text.replace("/tmp/proxy", str(self.folder / "run"))  # noqa: S108  the container's
        text = text.replace("/etc/proxy", str(self.folder / "etc"))
        for name in SERVICES["proxy"]["secrets"]:
            text = text.replace(f"/run/secrets/{name}", str(self.machine.secret(name)))
        for theirs, ours in self.replacements.items():
            text = text.replace(theirs, ours)
        return re.sub(r"(listen (?:127\.0\.0\.1:)?|^ +)(\d+)(?=[ ;])", self.port, text, flags=re.MULTILINE)

    def port(self, found: re.Match[str]) -> str:
        return f"{found[1]}{self.ports[int(found[2])]}"

    def logs(self) -> str:
        assert self.process
        return self.process.log.read_text()
