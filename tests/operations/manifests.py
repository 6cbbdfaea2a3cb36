"""Validation of the manifests in docker/kubernetes with the schemas of their kinds.

    python -m tests.operations.manifests

checks every file as written and, with kubectl or kustomize installed, every rendered overlay.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import yaml
from jsonschema import Draft202012Validator

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = PROJECT / "docker" / "kubernetes"
OVERLAYS = ("small", "production")
# The oldest version that docker/kubernetes/README.md supports, and the newest version with installed schemas, which
# must still have every field that is used.
VERSIONS = ("1.29", "1.37")
# KEDA's kinds are not part of Kubernetes.
KEDA = Draft202012Validator(json.loads((Path(__file__).parent / "schemas" / "keda.json").read_text()))

Document = dict[str, Any]


def read(text: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(text) if document]


def written() -> Iterator[tuple[str, Document]]:
    """Yield the location and the object of each document of every file, before kustomize."""
    for path in sorted(FOLDER.rglob("*.yaml")):
        if path.name != "kustomization.yaml":  # not an object of Kubernetes: kustomize checks it
            for document in read(path.read_text()):
                yield f"{path.relative_to(PROJECT)}: {location_of(document)}", completed(document)


def location_of(document: Document) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


def completed(document: Document) -> Document:
    """Add the required parts that a patch may omit: the selector, and containers."""
    if document["kind"] == "Deployment":
        document["spec"].setdefault("selector", {})
        document["spec"]["template"]["spec"].setdefault("containers", [])
    return document


def problems(document: Document) -> Iterator[str]:
    """Yield a sentence for each field that an API server would refuse or drop silently."""
    if document["apiVersion"].startswith("keda.sh/"):
        for error in KEDA.iter_errors(document):
            yield f"KEDA: {error.json_path.removeprefix('$.')}: {error.message}"
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}"


def program() -> list[str] | None:
    """Return the command that renders a folder, or None if neither kubectl nor kustomize is on PATH."""
    if kubectl := shutil.which("kubectl"):
        return [kubectl, "kustomize"]
    if kustomize := shutil.which("kustomize"):
        return [kustomize, "build"]
    return None


@cache
def rendered(overlay: str) -> list[Document]:
    """Return the objects of a rendered overlay."""
    command = program()
    if command is None:
        raise FileNotFoundError(
            "kubectl is missing, and kustomize too: without one of them the overlays cannot be rendered."
            " Install kubectl 1.27 or newer (https://kubernetes.io/docs/tasks/tools/), or kustomize 5."
        )
    done = subprocess.run([*command, str(FOLDER / "overlays" / overlay)], check=False, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"The overlay {overlay} cannot be rendered: {done.stderr.strip()}")
    return read(done.stdout)


def objects(documents: list[Document], *kinds: str) -> dict[str, Document]:
    """Return the objects of these kinds, by name."""
    return {document["metadata"]["name"]: document for document in documents if document["kind"] in kinds}


def pods(documents: list[Document]) -> dict[str, Document]:
    """Return the pod template of each Deployment and Job."""
    return {name: document["spec"]["template"] for name, document in objects(documents, "Deployment", "Job").items()}


def containers(pod: Document) -> dict[str, Document]:
    spec = pod["spec"]
    return {container["name"]: container for container in (*spec.get("initContainers", ()), *spec["containers"])}


def environment(documents: list[Document], container: Document, *, secrets: dict[str, str], ip: str) -> dict[str, str]:
    """Return the variables of a container, resolved as by the kubelet."""
    settings = {name: document["data"] for name, document in objects(documents, "ConfigMap").items()}
    given: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        given |= settings[source["configMapRef"]["name"]] if "configMapRef" in source else secrets
    for variable in container.get("env", ()):
        given[variable["name"]] = expanded(variable["value"], given) if "value" in variable else ""
        match variable.get("valueFrom"):
            case {"fieldRef": {"fieldPath": "status.podIP"}}:
                given[variable["name"]] = ip
            case {"configMapKeyRef": reference}:
                given[variable["name"]] = settings[reference["name"]][reference["key"]]
    return given


def expanded(text: str, given: dict[str, str]) -> str:
    """Expand `$(NAME)`, except for unknown variables."""
    return re.sub(r"\$\((\w+)\)", lambda found: given.get(found[1], found[0]), text)


def all_documents() -> Iterator[tuple[str, Document]]:
    yield from written()
    if program() is None:
        print("Neither kubectl nor kustomize is installed: the overlays are not rendered.", file=sys.stderr)  # noqa: T201
        return
    for overlay in OVERLAYS:
        for document in rendered(overlay):
            yield f"{overlay}: {location_of(document)}", document


def main() -> int:
    count = bad = 0
    for place, document in all_documents():
        count += 1
        for problem in problems(document):
            bad += 1
            print(f"{place}: {problem}", file=sys.stderr)  # noqa: T201
    print(f"{count} manifests, {bad} problems.")  # noqa: T201
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
