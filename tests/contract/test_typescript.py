"""TypeScript clients that generators make from the OpenAPI document compile and work, against real processes. C4.

`make clients` runs all of them, other tests only one. Their packages are in `.local/generators`, from the lock file in
`tests/contract/generators`.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from config.dev.stack.processes import Web
from config.settings import BASE_DIR
from tests.e2e.conftest import Workers

PROGRAMS = Path(__file__).with_name("generators")
PACKAGES = BASE_DIR / ".local" / "generators" / "node_modules"
SCHEMA = str(BASE_DIR / "docs" / "openapi.yaml")
GENERATORS = {
    "openapi-fetch": ("openapi-typescript", SCHEMA, "--output", "generated/openapi-typescript.d.ts"),
    "hey-api": ("openapi-ts", "--input", SCHEMA, "--output", "generated/hey-api"),
    "orval": ("orval", "--config", "orval.config.mjs"),
}
ALL = os.environ.get("GENERATORS") == "all"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PACKAGES.exists(), reason="needs Node.js and npm, and the packages of `make generators`"),
]


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("dataset")
@pytest.mark.parametrize("name", GENERATORS if ALL else ["openapi-fetch"])
def test_a_generated_client_compiles_and_works(
    name: str, workers: Workers, web: Web, token: str, tmp_path: Path
) -> None:
    """C4: an export to its verified file, a document to its text, a webhook, and a problem."""
    workers.start("exports,bundles,etl-ocr,etl-postprocess")
    shutil.copytree(PROGRAMS, folder := tmp_path / "client")
    (folder / "node_modules").symlink_to(PACKAGES)
    (folder / "orval.config.mjs").write_text(orval_config(web.url))
    run(folder, *GENERATORS[name])

    tsconfig = json.loads((folder / "tsconfig.json").read_text())
    (folder / "tsconfig.json").write_text(json.dumps({**tsconfig, "files": [f"{name}.ts"]}))
    run(folder, "tsc", "--project", ".")
    run(folder, "esbuild", f"{name}.ts", "--bundle", "--platform=node", "--format=esm", "--outfile=program.mjs")
    ran = subprocess.run(
        ["node", "program.mjs"],
        cwd=folder, env=environment({"SLUICE_URL": web.url, "SLUICE_TOKEN": token}), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


def orval_config(url: str) -> str:
    output = {"target": "generated/orval.ts", "client": "fetch", "baseUrl": url}
    return f"export default {json.dumps({'sluice': {'input': SCHEMA, 'output': output}})};\n"


def run(folder: Path, program: str, *arguments: str) -> None:
    ran = subprocess.run(
        [PACKAGES / ".bin" / program, *arguments],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of the programs: no settings of the service, no telemetry."""
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "DO_NOT_TRACK": "1", **(more or {})}
