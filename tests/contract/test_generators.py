"""Clients that several generators create from the OpenAPI document, compiled and run with real processes. C4.

`make clients` tests all of them, and other test runs only one. The generators are installed in `.venv-generators` and,
from the lock file in `tests/contract/generators`, in `.local/generators`.
"""

import json
import os
import shutil
import subprocess
import sys
from operator import itemgetter
from pathlib import Path

import pytest

from config.dev.stack.processes import Web
from config.settings import BASE_DIR
from exports.models import Dataset
from tests.e2e.conftest import Workers

PROGRAMS = Path(__file__).with_name("generators")
PACKAGES = BASE_DIR / ".local" / "generators"
NODE = PACKAGES / "node_modules" / ".bin"
VENV = BASE_DIR / ".venv-generators" / "bin"
SCHEMA = BASE_DIR / "docs" / "openapi.yaml"
OPENAPI_GENERATOR = (VENV / "openapi-generator-cli", "generate", "--input-spec", SCHEMA, "--generator-name")
TYPESCRIPT = {
    "openapi-fetch": (NODE / "openapi-typescript", SCHEMA, "--output", "generated/openapi-typescript.d.ts"),
    "hey-api": (NODE / "openapi-ts", "--input", SCHEMA, "--output", "generated/hey-api"),
    "orval": (NODE / "orval", "--config", "orval.config.mjs"),
    "openapi-generator": (*OPENAPI_GENERATOR, "typescript-fetch", "--output", "generated/openapi-generator"),
}
ALL = os.environ.get("GENERATORS") == "all"
# A package that the generated Go code requires. If this folder does not exist, Go downloads it.
GO_VALIDATOR = PACKAGES / "debian" / "usr" / "share" / "gocode" / "src" / "gopkg.in" / "validator.v2"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not NODE.exists(), reason="needs Node.js and npm, and the packages of `make generators`"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the client programs and a document."""
    shutil.copytree(PROGRAMS, folder := tmp_path / "client")
    (folder / "invoice.txt").write_text("Total: 118.50\n")
    return folder


@pytest.fixture
def variables(dataset: Dataset, workers: Workers, web: Web, token: str) -> dict[str, str]:
    """The environment variables of a client program."""
    workers.start("exports,bundles,etl-ocr,etl-postprocess")
    return {"SLUICE_URL": web.url, "SLUICE_TOKEN": token}


@pytest.mark.parametrize("name", TYPESCRIPT if ALL else ["openapi-fetch"])
def test_a_client_for_typescript_compiles_and_works(name: str, folder: Path, variables: dict[str, str]) -> None:
    """C4: it exports and verifies a file, processes a document, creates a webhook, and receives a problem."""
    (folder / "node_modules").symlink_to(NODE.parent)
    (folder / "orval.config.mjs").write_text(orval_config(variables["SLUICE_URL"]))
    run(folder, *TYPESCRIPT[name])

    tsconfig = json.loads((folder / "tsconfig.json").read_text())
    (folder / "tsconfig.json").write_text(json.dumps({**tsconfig, "files": [f"{name}.ts"]}))
    run(folder, NODE / "tsc", "--project", ".")
    run(folder, NODE / "esbuild", f"{name}.ts", "--bundle", "--platform=node", "--format=esm", "--outfile=program.mjs")
    assert run(folder, "node", "program.mjs", **variables) == "done\n"


def orval_config(url: str) -> str:
    output = {"target": "generated/orval.ts", "client": "fetch", "baseUrl": url}
    return f"export default {json.dumps({'sluice': {'input': str(SCHEMA), 'output': output}})};\n"


@pytest.mark.parametrize(
    "command",
    [
        ("redocly", "lint", "--config=redocly.yaml", "--format=stylish", "--max-problems=20"),
        ("spectral", "lint", "--ruleset=spectral.yaml", "--fail-severity=hint"),
    ],
    ids=itemgetter(0),
)
def test_linters_find_no_problem_in_the_document(command: tuple[str, ...], folder: Path) -> None:
    found = run(folder, NODE / command[0], *command[1:], SCHEMA, REDOCLY_TELEMETRY="off")
    assert "warning" not in found.lower(), found


if ALL:  # so that `make test-all` does not require Java and Go

    def test_a_client_for_python_has_correct_types_and_works(folder: Path, variables: dict[str, str]) -> None:
        run(folder, *OPENAPI_GENERATOR, "python", "--output", "generated")
        (folder / "openapi_client").symlink_to(folder / "generated" / "openapi_client")
        options = ("--config-file=", "--disable-error-code=import-untyped")
        run(folder, sys.executable, "-m", "mypy", *options, "openapi_generator.py")
        assert run(folder, sys.executable, "openapi_generator.py", **variables) == "done\n"

    def test_a_client_for_go_compiles_and_works(folder: Path, variables: dict[str, str]) -> None:
        go, properties = VENV / "go", "--additional-properties=withGoMod=false,enumClassPrefix=true"
        run(folder, *OPENAPI_GENERATOR, "go", "--output", "generated", properties)
        run(folder, go, "mod", "init", "sluice")
        if GO_VALIDATOR.exists():
            (GO_VALIDATOR / "go.mod").write_text("module gopkg.in/validator.v2\n")
            replacement = f"-replace=gopkg.in/validator.v2={GO_VALIDATOR}"
            run(folder, go, "mod", "edit", "-require=gopkg.in/validator.v2@v2.0.1", replacement)
        else:
            run(folder, go, "get", "gopkg.in/validator.v2@v2.0.1")
        run(folder, go, "build", "-o", "program", "main.go")
        run(folder, go, "vet", "./generated")
        assert run(folder, folder / "program", "invoice.txt", **variables) == "done\n"


def run(folder: Path, *command: str | Path, **variables: str) -> str:
    """Run a program without the settings of the service and without telemetry, and return its output."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(PACKAGES / "home"), "DO_NOT_TRACK": "1", **variables}
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
