"""The rendered manifests: their references to each other, and their consistency with the code."""

import json
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.urls import resolve

from config.env import Environment
from config.platform.http import health
from config.platform.http.outbound import ssrf_guard
from config.platform.observability import counters
from tests.operations import manifests
from tests.operations.manifests import FOLDER, OVERLAYS, Document, containers, objects, pods, rendered

README = (FOLDER / "README.md").read_text()
COMPOSE = yaml.safe_load((FOLDER.parent / "compose.yaml").read_text())["services"]
# Created manually according to the README, and in no file.
CREATED_MANUALLY = {"sluice-secrets", "sluice-broker", "sluice-tls"}
NAME, COMPONENT = "app.kubernetes.io/name", "app.kubernetes.io/component"
LIBRARIES = {"CELERY_QUIET", "REMAP_SIGTERM", "TMPDIR", counters.VARIABLE}
KUBELET = {"POD_IP", "PUBLIC_HOSTS"}  # parts of ALLOWED_HOSTS
PORTS = {"postgresql": 5432, "redis": 6379, "https": 443}


@pytest.fixture(params=OVERLAYS)
def documents(request: pytest.FixtureRequest) -> list[Document]:
    return rendered(request.param)


@pytest.fixture
def production() -> list[Document]:
    return rendered("production")


def main_containers(documents: list[Document]) -> dict[str, Document]:
    """Return the main container of each of Sluice's pods."""
    return {name: containers(pod)["sluice"] for name, pod in pods(documents).items()}


def megabytes(amount: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi|M|G)", amount).groups()  # type: ignore[union-attr]
    return int(number) * (1024 if unit.startswith("G") else 1)


def cores(amount: str) -> float:
    return int(amount[:-1]) / 1000 if amount.endswith("m") else float(amount)


# ---- All objects -----------------------------------------------------------------------------------------------
def test_every_object_matches_its_schema(documents: list[Document]) -> None:
    found = {manifests.location_of(document): list(manifests.problems(document)) for document in documents}

    assert len(found) == len(documents)  # no duplicates
    assert {name: problems for name, problems in found.items() if problems} == {}


def test_every_object_is_in_the_restricted_namespace(documents: list[Document]) -> None:
    (namespace,) = objects(documents, "Namespace").values()

    assert {document["metadata"].get("namespace") for document in documents} == {"sluice", None}
    assert [document["kind"] for document in documents if "namespace" not in document["metadata"]] == ["Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_all_containers_use_one_versioned_image(documents: list[Document]) -> None:
    images = {container["image"] for pod in pods(documents).values() for container in containers(pod).values()}
    (image,) = images

    assert re.fullmatch(r"registry\.example\.org/sluice:\d+\.\d+\.\d+", image)


def test_every_reference_resolves(documents: list[Document]) -> None:
    text = json.dumps(documents)
    referred = set(re.findall(r'"(?:configMapRef|configMap|configMapKeyRef)": \{[^{}]*?"name": "([^"]+)"', text))
    secrets = set(re.findall(r'"secret(?:Name|KeyRef|Ref)": (?:\{"name": )?"([^"]+)"', text))
    secrets |= {
        target["name"]
        for authentication in objects(documents, "TriggerAuthentication").values()
        for target in authentication["spec"]["secretTargetRef"]
    }

    assert referred == objects(documents, "ConfigMap").keys()
    assert secrets <= CREATED_MANUALLY
    assert all(re.search(rf"create secret (generic|tls) {name} ", README) for name in secrets)
    assert not objects(documents, "Secret")
    for pod in pods(documents).values():
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounted = [mount["name"] for container in containers(pod).values() for mount in container["volumeMounts"]]
        claims = {
            volume["persistentVolumeClaim"]["claimName"]
            for volume in volumes.values()
            if "persistentVolumeClaim" in volume
        }
        assert set(mounted) == volumes.keys()
        assert claims <= objects(documents, "PersistentVolumeClaim").keys()
        assert pod["spec"]["serviceAccountName"] in objects(documents, "ServiceAccount")


def selected(documents: list[Document], selector: Document) -> set[str]:
    """Return the Deployments and Jobs whose pods match a selector."""

    def fits(labels: dict[str, str]) -> bool:
        has_labels = selector.get("matchLabels", {}).items() <= labels.items()
        return has_labels and all(
            labels.get(expression["key"]) in expression["values"] for expression in selector.get("matchExpressions", ())
        )

    return {name for name, pod in pods(documents).items() if fits(pod["metadata"]["labels"])}


def test_selectors_match_their_pods(documents: list[Document]) -> None:
    for name, deployment in objects(documents, "Deployment").items():
        assert selected(documents, deployment["spec"]["selector"]) == {name}
    for name, service in objects(documents, "Service").items():
        assert selected(documents, {"matchLabels": service["spec"]["selector"]}) == {name}


def test_the_ingress_routes_to_web(documents: list[Document]) -> None:
    (ingress,), (service,) = objects(documents, "Ingress").values(), objects(documents, "Service").values()
    (rule,) = ingress["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    (port,) = service["spec"]["ports"]
    (container_port,) = main_containers(documents)["web"]["ports"]
    allowed = next(iter(settings_maps(documents)))["ALLOWED_HOSTS"].split(",")

    assert backend == {"name": service["metadata"]["name"], "port": {"name": port["name"]}}
    assert port["targetPort"] == container_port["name"]
    assert f"--port={container_port['containerPort']}" in main_containers(documents)["web"]["command"]
    assert {rule["host"], *ingress["spec"]["tls"][0]["hosts"]} == set(allowed)
    body = re.fullmatch(r"(\d+)m", ingress["metadata"]["annotations"]["nginx.org/client-max-body-size"])
    assert body
    assert int(body[1]) * 1024**2 > Environment.model_fields["etl_max_file_bytes"].default + 1024**2


def settings_maps(documents: list[Document]) -> Iterator[dict[str, str]]:
    """Yield the ConfigMaps of settings that are not secret."""
    yield from (map_["data"] for map_ in objects(documents, "ConfigMap").values() if "ALLOWED_HOSTS" in map_["data"])


# ---- Pods -------------------------------------------------------------------------------------------------------
def test_pods_run_with_least_privilege(documents: list[Document]) -> None:
    (account,) = objects(documents, "ServiceAccount").values()
    assert account["automountServiceAccountToken"] is False
    for pod in pods(documents).values():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {spec["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {image_user()}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for container in containers(pod).values():
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            limits, requests = container["resources"]["limits"], container["resources"]["requests"]
            assert requests["memory"] == limits["memory"]
            assert cores(requests["cpu"]) <= cores(limits["cpu"])
            assert not any("hostPort" in port for port in container.get("ports", ()))


def image_user() -> int:
    dockerfile = (FOLDER.parent / "Dockerfile").read_text()
    return int(re.findall(r"^USER (\d+):", dockerfile, re.MULTILINE)[-1])


def test_only_containers_that_need_secrets_get_them(documents: list[Document]) -> None:
    for name, pod in pods(documents).items():
        for container in containers(pod).values():
            holds = {"secretRef": {"name": "sluice-secrets"}} in container.get("envFrom", ())
            assert holds == (container["name"] != "metrics"), name


def test_pods_match_the_compose_containers(documents: list[Document]) -> None:
    services = {name: service for name, service in COMPOSE.items() if name in pods(documents)}
    ours = {name for name, service in COMPOSE.items() if service["image"].startswith(("sluice:", "sluice-ocr:"))}
    assert services.keys() == pods(documents).keys() == ours
    for name, main in main_containers(documents).items():
        limits, service = main["resources"]["limits"], services[name]
        assert megabytes(limits["memory"]) == megabytes(service["deploy"]["resources"]["limits"]["memory"])
        assert cores(limits["cpu"]) == float(service["deploy"]["resources"]["limits"]["cpus"])
        own = {variable["name"]: variable.get("value") for variable in main.get("env", ())}
        assert own.keys() <= Environment.names() | LIBRARIES | KUBELET
        declared = {name: value for name, value in own.items() if name not in KUBELET | {"ALLOWED_HOSTS"}}
        theirs = service["environment"]
        assert declared == {name: theirs[name] for name in declared}
        assert LIBRARIES & theirs.keys() == LIBRARIES & declared.keys()


def test_pods_have_time_for_graceful_shutdown(documents: list[Document]) -> None:
    for name, pod in pods(documents).items():
        grace, main = pod["spec"].get("terminationGracePeriodSeconds", 30), containers(pod)["sluice"]
        if name.startswith("worker-"):
            assert grace >= settings.CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT + 10
        if name == "web":
            before = int(main["lifecycle"]["preStop"]["exec"]["command"][-1])
            graceful = int(next(word for word in main["command"] if "graceful" in word).partition("=")[2])
            assert before > 0
            assert grace > before + graceful


def test_probes_refer_to_existing_ports_and_commands(documents: list[Document]) -> None:
    for name, main in main_containers(documents).items():
        probes = {kind: main[kind] for kind in ("startupProbe", "readinessProbe", "livenessProbe") if kind in main}
        if name.startswith("worker-"):
            assert {tuple(probe["exec"]["command"]) for probe in probes.values()} == {("/usr/local/bin/worker-health",)}
            assert all(probe["timeoutSeconds"] > 8 for probe in probes.values())  # the command's own timeout
            assert len(probes) == 3
        elif name == "beat":
            *_, code = COMPOSE["beat"]["healthcheck"]["test"]
            assert {tuple(probe["exec"]["command"]) for probe in probes.values()} == {("python", "-c", code)}
        elif name == "web":
            views = {kind: resolve(probe["httpGet"]["path"]).func for kind, probe in probes.items()}
            assert {kind: view.view_class for kind, view in views.items()} == {  # type: ignore[attr-defined]
                "startupProbe": health.Ready, "readinessProbe": health.Live, "livenessProbe": health.Live
            }  # fmt: skip
            assert all(probe["timeoutSeconds"] > health.CHECK_SECONDS for probe in probes.values())
        else:
            assert not probes  # the migration exits
        for kind in probes.keys() & {"startupProbe", "livenessProbe"}:
            assert probes[kind]["periodSeconds"] * probes[kind]["failureThreshold"] >= 60


def test_writable_paths_are_volumes(documents: list[Document]) -> None:
    """Everything else is read-only."""
    for name, main in main_containers(documents).items():
        values = [variable.get("value", "") for variable in main.get("env", ())]
        paths = re.findall(r"/(?:var|tmp)[\w/]*", " ".join([*values, *main["command"]]))
        mounts = [mount["mountPath"] for mount in main["volumeMounts"] if not mount.get("readOnly")]
        assert all(any(Path(path).is_relative_to(mount) for mount in mounts) for path in paths), name
        assert "/tmp" in mounts  # noqa: S108  of the pod


def test_workers_mount_the_metrics_folder(documents: list[Document]) -> None:
    for name, pod in pods(documents).items():
        if not name.startswith("worker-"):
            continue
        sidecar, main = containers(pod)["metrics"], containers(pod)["sluice"]
        *_, folder, port = sidecar["command"]
        assert {"name": counters.VARIABLE, "value": folder} in main["env"]
        assert {"name": "metrics", "mountPath": folder} in main["volumeMounts"]
        assert {"name": "metrics", "mountPath": folder, "readOnly": True} in sidecar["volumeMounts"]
        assert sidecar["ports"] == [{"name": "metrics", "containerPort": int(port)}]
        # As an ordinary init container, it would have to exit before the worker starts.
        assert sidecar["restartPolicy"] == "Always"


def test_the_readme_podmonitor_scrapes_existing_ports(production: list[Document]) -> None:
    monitor = yaml.safe_load(re.search(r"```yaml\n(.*?)```", README, re.DOTALL)[1])  # type: ignore[index]
    scraped = {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
    ports = {
        port["name"]
        for pod in pods(production).values()
        for container in containers(pod).values()
        for port in container.get("ports", ())
    }

    assert scraped == ports
    assert {"web", *objects(production, "ScaledObject")} <= selected(production, monitor["spec"]["selector"])
    assert all(resolve(endpoint["path"]) for endpoint in monitor["spec"]["podMetricsEndpoints"])


# ---- Disruptions and scaling ------------------------------------------------------------------------------------
def test_disruption_budgets_allow_one_pod_of_each_kind_to_be_unavailable(production: list[Document]) -> None:
    budgets = objects(production, "PodDisruptionBudget")
    deployments, scaled = objects(production, "Deployment"), objects(production, "ScaledObject")

    assert budgets.keys() == deployments.keys() - {"beat"}
    for name, budget in budgets.items():
        assert selected(production, budget["spec"]["selector"]) == {name}
        assert budget["spec"]["maxUnavailable"] == 1
        least = scaled[name]["spec"]["minReplicaCount"] if name in scaled else deployments[name]["spec"]["replicas"]
        assert least >= 2, name


def test_deployments_scaled_by_keda_set_no_replicas(production: list[Document]) -> None:
    for scaled in objects(production, "ScaledObject").values():
        target = objects(production, "Deployment")[scaled["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in target["spec"]
        assert scaled["spec"]["minReplicaCount"] < scaled["spec"]["maxReplicaCount"]
        for trigger in scaled["spec"]["triggers"]:
            # Without data, the number of pods must stay as it is: 0 would remove them.
            assert trigger["type"] == "redis" or trigger["metadata"]["ignoreNullValues"] == "false"


def concurrency(documents: list[Document], name: str) -> int:
    word = next(word for word in main_containers(documents)[name]["command"] if word.startswith("--concurrency="))
    return int(manifests.expanded(word.partition("=")[2], next(settings_maps(documents))))


def trigger(documents: list[Document], name: str, trigger_name: str) -> dict[str, str]:
    found: dict[str, str] = next(
        trigger["metadata"]
        for trigger in objects(documents, "ScaledObject")[name]["spec"]["triggers"]
        if trigger["name"] == trigger_name
    )
    return found


def test_documents_are_read_in_a_sandbox_only(documents: list[Document]) -> None:
    """As in docker/.env.example."""
    assert next(settings_maps(documents))["ETL_REQUIRE_SANDBOX"] == "true"


def test_the_maximum_number_of_workers_matches_the_slots(production: list[Document]) -> None:
    slots, each = int(next(settings_maps(production))["EXPORT_DB_SLOTS"]), concurrency(production, "worker-exports")

    assert objects(production, "ScaledObject")["worker-exports"]["spec"]["maxReplicaCount"] * each == slots
    assert int(trigger(production, "worker-exports", "depth")["threshold"]) == each


def test_one_pod_is_added_per_number_of_documents_that_a_pod_runs(production: list[Document]) -> None:
    trigger_spec, given = trigger(production, "worker-etl-ocr", "depth"), next(settings_maps(production))

    assert int(trigger_spec["listLength"]) == concurrency(production, "worker-etl-ocr")
    assert trigger_spec["listName"] == f"{given['ETL_ARQ_QUEUE_NAME']}-ocr"
    limit = megabytes(main_containers(production)["worker-etl-ocr"]["resources"]["limits"]["memory"])
    assert limit / concurrency(production, "worker-etl-ocr") >= 1.2 * 1024  # memory per document


# ---- Network policies ------------------------------------------------------------------------------------------
def policies(documents: list[Document], name: str, direction: str) -> list[Document]:
    """Return the rules that apply to the pods of a Deployment or Job."""
    return [
        rule
        for policy in objects(documents, "NetworkPolicy").values()
        if name in selected(documents, policy["spec"]["podSelector"])
        for rule in policy["spec"].get(direction, ())
    ]


def ports_of(rule: Document) -> set[int]:
    return {port["port"] for port in rule["ports"]}


def test_network_policies_deny_by_default(production: list[Document]) -> None:
    nothing = objects(production, "NetworkPolicy")["nothing"]["spec"]

    assert selected(production, nothing["podSelector"]) == pods(production).keys()
    assert set(nothing["policyTypes"]) == {"Ingress", "Egress"}
    assert not {"ingress", "egress"} & nothing.keys()
    for policy in objects(production, "NetworkPolicy").values():
        rules = [*policy["spec"].get("ingress", ()), *policy["spec"].get("egress", ())]
        assert all(rule["ports"] and (rule.get("to") or rule.get("from")) for rule in rules)


def test_every_listening_port_is_reachable(production: list[Document]) -> None:
    for name, pod in pods(production).items():
        listened = {port["containerPort"] for box in containers(pod).values() for port in box.get("ports", ())}
        allowed = {port for rule in policies(production, name, "ingress") for port in ports_of(rule)}
        assert listened <= allowed
    assert {rule["from"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
            for rule in policies(production, "web", "ingress")} == {"nginx-ingress", "monitoring"}  # fmt: skip
    address = trigger(production, "worker-exports", "age")["serverAddress"]
    assert ".monitoring.svc:" in address  # KEDA queries the Prometheus whose access is allowed


def test_all_pods_reach_dns_database_broker_and_object_storage(production: list[Document]) -> None:
    wanted = {53, *PORTS.values()}
    for name in pods(production):
        allowed = {port for rule in policies(production, name, "egress") for port in ports_of(rule)}
        assert wanted <= allowed, name
    names = next(rule for rule in policies(production, "web", "egress") if ports_of(rule) == {53})
    assert {port["protocol"] for port in names["ports"]} == {"UDP", "TCP"}


def test_only_webhook_workers_reach_public_addresses(production: list[Document]) -> None:
    blocks = {
        name: [
            peer["ipBlock"] for rule in policies(production, name, "egress") for peer in rule["to"] if "ipBlock" in peer
        ]
        for name in pods(production)
    }
    world = [name for name, peers in blocks.items() if any(block["cidr"] == "0.0.0.0/0" for block in peers)]
    except_ = next(block["except"] for block in blocks["worker-webhooks"] if "except" in block)
    inside = [ip_network(cidr) for cidr in except_]

    assert world == ["worker-webhooks"]
    # No public address is blocked, and no private network is open.
    for network in inside:
        assert not ssrf_guard.is_public(network[0])
        assert not ssrf_guard.is_public(network[-1])
    for address in (
        "10.1.2.3",
        "172.20.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "127.0.0.1",
        "168.63.129.16",
    ):
        assert any(ip_address(address) in network for network in inside)
    assert str(ssrf_guard.GLOBAL_UNICAST) in [block["cidr"] for block in blocks["worker-webhooks"]]


# ---- Commands of the README -------------------------------------------------------------------------------------
def commands(beginning: str) -> list[list[str]]:
    """Return the README's commands with this beginning, split into words."""
    joined = README.replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(rf"^ +({re.escape(beginning)}.*)$", joined, re.MULTILINE)]


RESOURCES = {
    "v1": ("Namespace", "ServiceAccount", "ConfigMap", "Service", "PersistentVolumeClaim"),
    "apps/v1": ("Deployment",),
    "batch/v1": ("Job",),
    "policy/v1": ("PodDisruptionBudget",),
    "networking.k8s.io/v1": ("Ingress", "NetworkPolicy"),
    "keda.sh/v1alpha1": ("ScaledObject", "TriggerAuthentication"),
}


class EmptyCluster(BaseHTTPRequestHandler):
    """An API server with resource kinds and without objects."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        found = self.discover(path, path.removeprefix("apis/").removeprefix("api/"))
        missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        body = json.dumps(found or missing).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def discover(self, path: str, version: str) -> dict[str, Any] | None:
        if path == "api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "apis":
            groups = [
                (name, {"groupVersion": name, "version": name.partition("/")[2]}) for name in RESOURCES if "/" in name
            ]
            return {
                "kind": "APIGroupList",
                "groups": [
                    {"name": name.partition("/")[0], "versions": [known], "preferredVersion": known}
                    for name, known in groups
                ],
            }
        if version not in RESOURCES:
            return None
        return {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": [
                {
                    "name": plural(kind),
                    "kind": kind,
                    "namespaced": kind != "Namespace",
                    "verbs": ["get", "create", "patch"],
                }
                for kind in RESOURCES[version]
            ],
        }

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


def plural(kind: str) -> str:
    return f"{kind.lower()}es" if kind.endswith("s") else re.sub("ys$", "ies", f"{kind.lower()}s")


@pytest.fixture
def kubectl(tmp_path: Path) -> Iterator[list[str]]:
    """kubectl on an empty cluster, which it does not change."""
    program = manifests.program()
    assert program
    assert program[-1] == "kustomize", "these are commands of kubectl: kustomize alone cannot run them"
    server = ThreadingHTTPServer(("127.0.0.1", 0), EmptyCluster)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [program[0], f"--server=http://127.0.0.1:{server.server_port}", "--kubeconfig=/dev/null",
           f"--cache-dir={tmp_path / 'cache'}"]  # fmt: skip
    server.shutdown()
    server.server_close()


def applied(kubectl: list[str], words: list[str], overlay: str) -> set[str]:
    """Return the kinds and names of the objects that a command of the README would apply."""
    command = [str(FOLDER / "overlays" / overlay) if word == "$overlay" else word for word in words[1:]]
    done = subprocess.run(
        [*kubectl, *command, "--dry-run=client", "--validate=false", "--output=name"],
        check=True, capture_output=True, text=True, cwd=manifests.PROJECT,
    )  # fmt: skip
    return {re.sub(r"\.[a-z0-9.]+/", "/", line) for line in done.stdout.splitlines()}


def test_an_upgrade_migrates_before_it_replaces_pods(kubectl: list[str], documents: list[Document]) -> None:
    overlay = "production" if objects(documents, "ScaledObject") else "small"
    first, second, last = (applied(kubectl, words, overlay) for words in commands("kubectl apply -k $overlay"))
    everything = {f"{document['kind'].lower()}/{document['metadata']['name']}" for document in documents}
    steps = [words[1:] for words in commands("kubectl") if {"job/migrate", "migrate", "-k", "rollout"} & set(words)]

    assert sorted([*first, *second, *last]) == sorted(everything)
    assert {"deployment/web", "service/web"} <= last
    assert {name for name in second if name.startswith("deployment/")} == {
        f"deployment/{name}" for name in objects(documents, "Deployment").keys() - {"web"}
    }
    assert {name.partition("/")[0] for name in first} == {"namespace", "serviceaccount", "configmap", "job"} | (
        {"networkpolicy"} if overlay == "production" else set()
    )
    assert "job/migrate" in first
    # The command between the first two `apply` waits for the migration.
    order = [
        next(word for word in ("delete", "apply", "wait", "rollout", "create") if word in words) for words in steps
    ]
    assert order[:7] == ["delete", "apply", "wait", "apply", "rollout", "apply", "rollout"]


def test_the_migration_command_applies_its_dependencies(kubectl: list[str], production: list[Document]) -> None:
    first = applied(kubectl, commands("kubectl apply -k $overlay")[0], "production")
    pod = pods(production)["migrate"]["spec"]
    maps = {source["configMapRef"]["name"] for source in pod["containers"][0]["envFrom"] if "configMapRef" in source}
    reached = {
        name
        for name, policy in objects(production, "NetworkPolicy").items()
        if "migrate" in selected(production, policy["spec"]["podSelector"])
    }

    assert {f"configmap/{name}" for name in maps} | {f"serviceaccount/{pod['serviceAccountName']}"} <= first
    assert {f"networkpolicy/{name}" for name in reached} <= first
    assert not pod["volumes"] or all("persistentVolumeClaim" not in volume for volume in pod["volumes"])


def test_the_reconcile_job_differs_from_the_migration_in_its_command(
    kubectl: list[str], production: list[Document]
) -> None:
    """After a restore, no pod runs in which the command could be executed."""
    make, jq = commands("kubectl create -k $overlay")[0], commands("jq ")[0]
    words = [str(FOLDER / "overlays" / "production") if word == "$overlay" else word for word in make[1:-1]]
    made = subprocess.run(
        [*kubectl, *words, "--validate=false"], check=True, capture_output=True, cwd=manifests.PROJECT
    )
    job = json.loads(subprocess.run(jq[:-1], check=True, input=made.stdout, capture_output=True).stdout)

    pod, expected = job["spec"]["template"]["spec"], pods(production)["migrate"]["spec"]
    assert (job["kind"], job["metadata"]["name"], job["metadata"]["namespace"]) == ("Job", "reconcile", "sluice")
    assert pod["containers"][0]["command"] == ["python", "manage.py", "reconcile"]
    assert pod["containers"][0]["envFrom"] == expected["containers"][0]["envFrom"]


def test_labels_in_readme_commands_select_the_intended_objects(documents: list[Document]) -> None:
    for words in (*commands("kubectl -n sluice rollout"), *commands("kubectl -n sluice scale")):
        selector = words[words.index("-l") + 1].split("=")
        found = {
            name
            for name, deployment in objects(documents, "Deployment").items()
            if deployment["metadata"]["labels"].get(selector[0]) == selector[1]
        }
        assert found == objects(documents, "Deployment").keys()


def test_the_readme_creates_the_secrets_that_pods_and_keda_need(
    kubectl: list[str], production: list[Document], tmp_path: Path
) -> None:
    lines = re.findall(r"^ +([A-Z0-9_]+=)$", README, re.MULTILINE)
    (tmp_path / "secrets.env").write_text("".join(f"{line}secret$'\"\n" for line in lines))
    (tmp_path / "broker-password.txt").write_text("secret")
    made: dict[str, dict[str, str]] = {}
    for words in commands("kubectl -n sluice create secret generic"):
        done = subprocess.run(
            [*kubectl, *words[1:], "--dry-run=client", "--output=json"],
            check=True, capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        secret = json.loads(done.stdout)
        made[secret["metadata"]["name"]] = secret["data"]
    (authentication,) = objects(production, "TriggerAuthentication").values()

    assert {f"{name}=" for name in made["sluice-secrets"]} == set(lines)
    for target in authentication["spec"]["secretTargetRef"]:
        assert target["key"] in made[target["name"]]
