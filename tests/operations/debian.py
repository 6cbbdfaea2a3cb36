"""Third-party servers from Debian packages, unpacked into .local/debian without installing them.

    python -m tests.operations.debian

needs neither root nor sudo, only apt and dpkg. Without apt and dpkg, the programs on PATH are used.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("nginx", "pgbouncer", "prometheus", "rabbitmq-server", "stunnel4")
ROOT = Path(__file__).resolve().parents[2] / ".local" / "debian"
STAMP = ROOT / "unpacked"


def program(name: str) -> str:
    """Return the path of a program in these packages, or on PATH if nothing was unpacked: `program("promtool")`."""
    for folder in ("usr/bin", "usr/sbin", "bin", "sbin"):
        if (found := ROOT / folder / name).is_file():
            return str(found)
    if found_on_path := shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
        return found_on_path
    raise FileNotFoundError(f"{name} is missing. Install it (Debian, Ubuntu: sudo apt install {' '.join(PACKAGES)}).")


def environment() -> dict[str, str]:
    """Return the environment variables that these programs need to find their libraries."""
    libraries = [str(ROOT / folder) for folder in ("usr/lib", "lib") if (ROOT / folder).is_dir()]
    libraries += [str(path) for folder in libraries for path in Path(folder).glob("*-linux-gnu*")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)} if libraries else dict(os.environ)


def unpack() -> None:
    """Download and unpack the packages with their missing dependencies, once."""
    if STAMP.exists() and STAMP.read_text().split() == list(PACKAGES):
        return
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        print("apt-get is missing. The operations tests need on PATH:", *PACKAGES, file=sys.stderr)  # noqa: T201
        return
    print("Unpacking", *PACKAGES, "from Debian's packages into .local/debian …", flush=True)  # noqa: T201
    shutil.rmtree(ROOT, ignore_errors=True)
    apt = ROOT / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    settings = (f"Dir::State::lists={apt}/lists", f"Dir::Cache={apt}/cache", "APT::Sandbox::User=")
    options = ["-qq", *(f"--option={setting}" for setting in settings)]
    subprocess.run(["apt-get", *options, "update"], check=True)
    # Installed packages are not listed: apt prints the files that an installation would download.
    planned = subprocess.run(
        ["apt-get", *options, "install", "--yes", "--no-install-recommends", "--print-uris", *PACKAGES],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    files = [line.split()[1] for line in planned.stdout.splitlines() if line.startswith("'")]
    wanted = ["=".join(name.replace("%3a", ":").split("_")[:2]) for name in files]
    if wanted:
        subprocess.run(["apt-get", *options, "download", *wanted], check=True, cwd=apt)
    for file in sorted(apt.glob("*.deb")):
        subprocess.run(["dpkg", "-x", file, ROOT], check=True)
    shutil.rmtree(apt)
    STAMP.write_text(" ".join(PACKAGES))


if __name__ == "__main__":
    unpack()
