"""Alert rules and the dashboard: a real Prometheus evaluates them on the metrics of real processes."""

import http.client
import json
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import psycopg
import pytest
import yaml
from celery import current_app
from django.contrib.auth.models import User
from django_prometheus.middleware import Metrics
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from config.dev.stack import ports
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.processes import Web
from exports.models import Dataset, Delivery, Job
from tests.chaos.documents import ALL
from tests.e2e.conftest import Workers
from tests.e2e.test_metrics import FUNCTION, ended, items
from tests.integration.receiver import receiver
from tests.operations import debian, promql
from tests.operations.scraper import scraper
from tests.serving import serving, token_of
from tests.waiting import wait_until

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "docker" / "observability"
RUNBOOK = PROJECT / "docs" / "runbook.md"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana" / "dashboard.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((FOLDER / "alerts.yml").read_text())
CASES: dict[str, Any] = yaml.safe_load((FOLDER / "alerts.test.yml").read_text())
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGET_LABELS = {"job", "instance", "host"}  # labels that Prometheus adds
PROMETHEUS_SERIES = {"ALERTS": {"alertname", "alertstate", "severity"}}  # series of Prometheus itself

# Panels about failures, which have no series before the first failure.
EMPTY_WITHOUT_FAILURES = {
    "Database connections and errors: {{alias}}: failed connections",
    "Database connections and errors: {{type}}",
    "Exceptions: {{type}}",
}


def scaling_queries() -> list[str]:
    """Return KEDA's Prometheus queries in every overlay."""
    found = []
    for path in sorted((PROJECT / "docker" / "kubernetes").rglob("*.y*ml")):
        for document in yaml.safe_load_all(path.read_text()):
            if isinstance(document, dict) and document.get("kind") == "ScaledObject":
                triggers = document["spec"]["triggers"]
                found += [each["metadata"]["query"] for each in triggers if each["type"] == "prometheus"]
    return found


# ---- The files ------------------------------------------------------------------------------------------------------
def promtool(*arguments: str) -> None:
    command = [debian.program("promtool"), *arguments]
    done = subprocess.run(command, cwd=FOLDER, env=debian.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_and_its_rules_are_valid() -> None:
    promtool("check", "config", "prometheus.yml")


def test_each_alert_fires_only_under_its_condition() -> None:
    promtool("test", "rules", "alerts.test.yml")
    names = {rule["alert"] for rule in RULES if "alert" in rule}
    for word in ("fires", "is silent"):
        assert {case["name"].split()[0] for case in CASES["tests"] if word in case["name"]} == names


def anchors(text: str) -> set[str]:
    """Return the anchors of a page: its headings in lower case, with dashes."""
    headings = re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_alert_links_to_a_runbook_chapter() -> None:
    targets = anchors(RUNBOOK.read_text())
    for rule in RULES:
        if "alert" in rule:
            page, _, anchor = rule["annotations"]["runbook"].partition("#")
            assert page == "docs/runbook.md", rule["alert"]
            assert anchor in targets, rule["alert"]
    for panel in PANELS:
        for anchor in re.findall(r"docs/runbook\.md#([\w-]+)", panel["description"]):
            assert anchor in targets, panel["title"]


def test_every_alert_has_a_summary_an_action_and_a_severity() -> None:
    for rule in RULES:
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"page", "ticket"}, rule["alert"]
            assert rule["annotations"]["description"].startswith("First "), rule["alert"]
            assert rule["annotations"]["summary"], rule["alert"]


# ---- The dashboard's shape ------------------------------------------------------------------------------------------
def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    everything = DASHBOARD["panels"]
    numbers = [panel["id"] for panel in everything]
    assert len(set(numbers)) == len(numbers)
    for one, other in combinations([panel["gridPos"] for panel in everything], 2):
        apart = (
            one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        )  # fmt: skip
        assert apart, (one, other)
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in (p["gridPos"] for p in everything))


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: f"{panel['id']}-{panel['title']}")
def test_every_panel_has_a_description_a_unit_and_a_data_source(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in {"short", "s", "ms", "percentunit", "cps", "Bps", "reqps"}
    assert panel["targets"]
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)
    for each in (panel, *panel["targets"]):
        assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_the_dashboard_starts_with_the_overall_health() -> None:
    first, *rest = sorted(DASHBOARD["panels"], key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"]))
    assert first["type"] == "row"
    assert first["title"] == "Overall state"
    row = [panel for panel in rest if panel["gridPos"]["y"] < 9]
    assert [panel["title"] for panel in row if not re.search(r"docs/runbook\.md", panel["description"])] == []
    assert {panel["type"] for panel in row} == {"stat", "gauge"}
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource"]


def test_provisioning_finds_the_dashboard_and_its_data_source() -> None:
    provisioning = FOLDER / "grafana" / "provisioning"
    boards = yaml.safe_load((provisioning / "dashboards" / "sluice.yml").read_text())
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())
    readme = (FOLDER / "README.md").read_text()
    assert f"{boards['providers'][0]['options']['path']}/sluice.json" in readme
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert sources["datasources"][0]["jsonData"]["timeInterval"] == scraped


# ---- Exported metrics --------------------------------------------------------------------------------------------
@dataclass
class Exposition:
    """The metrics of a scrape. `values`: the values of each label, by series name.

    `declared`: the labels of metrics that may have no series yet. All of Sluice's metrics have series from the start.
    Some of django-prometheus' appear in the shared files with the first event of their kind.
    """

    values: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    declared: dict[str, set[str]] = field(
        default_factory=lambda: {
            name: labels for name, labels in labels_in_code().items() if name.startswith("django_")
        }
    )

    @classmethod
    def parse(cls, text: str) -> "Exposition":
        exposition = cls()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = exposition.values.setdefault(sample.name, {})
                for label, value in sample.labels.items():
                    labels.setdefault(label, set()).add(value)
        return exposition

    def mismatches(self, selector: promql.Selector) -> list[str]:
        """Return the errors of a selector."""
        if selector.metric in PROMETHEUS_SERIES:
            return []
        labels = self.values.get(selector.metric)
        if labels is None:
            if selector.metric not in self.declared:
                return [f"{selector.metric} is not a metric"]
            return [f"{selector.text} has no such label" for label, _ in selector.matchers
                    if label not in self.declared[selector.metric]]  # fmt: skip
        return [
            f"{selector.text}: no series has {label}={value}"
            for label, value in selector.matchers
            if label not in TARGET_LABELS and value not in labels.get(label, set())
        ]

    def labels_of(self, metric: str) -> set[str]:
        return PROMETHEUS_SERIES.get(metric) or {*self.values.get(metric, {}), *self.declared.get(metric, set())}


def labels_in_code() -> dict[str, set[str]]:
    """Return the labels of every metric of this process, by the names of its series."""
    Metrics.get_instance()  # the middlewares' metrics are registered with the first of them
    found: dict[str, set[str]] = {}
    for collector in set(REGISTRY._collector_to_names):
        names, labels = REGISTRY._collector_to_names[collector], set(getattr(collector, "_labelnames", ()))
        for name in names:
            found[name] = labels | ({"le"} if name.endswith("_bucket") else set())
    return found


def expressions() -> Iterator[tuple[str, str, set[str]]]:
    """Yield the location of each expression, the expression, and the labels that its texts mention."""
    for rule in RULES:
        texts = " ".join(rule.get("annotations", {}).values())
        yield str(rule.get("alert") or rule["record"]), rule["expr"], set(re.findall(r"\$labels\.(\w+)", texts))
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
    for query in scaling_queries():
        yield "KEDA", query, set()


def inputs() -> Iterator[promql.Selector]:
    for case in CASES["tests"]:
        for given in case["input_series"]:
            yield from promql.selectors(given["series"])


def assert_metrics_exist(exposition: Exposition) -> None:
    """Assert that every name, label, and value in rules, rule tests, panels, and scalers was exported."""
    records = {rule["record"] for rule in RULES if "record" in rule}
    errors = []
    for place, expression, mentioned in expressions():
        selectors_used = [each for each in promql.selectors(expression) if each.metric not in records]
        errors += [f"{place}: {miss}" for each in selectors_used for miss in exposition.mismatches(each)]
        if selectors_used:
            known = set().union(*(exposition.labels_of(each.metric) for each in selectors_used))
            errors += [f"{place}: no label {label}" for label in (promql.groupings(expression) | mentioned) - known]
    errors += [f"a test of alerts: {miss}" for each in inputs() for miss in exposition.mismatches(each)]
    assert errors == []


# ---- Prometheus -----------------------------------------------------------------------------------------------------
class Prometheus:
    """A real Prometheus with the shipped configuration, another target, and short intervals."""

    def __init__(self, folder: Path, target: str) -> None:
        folder.mkdir()
        text = (FOLDER / "prometheus.yml").read_text()
        quick = text.replace("web:8000", target).replace("alerts.yml", f"{FOLDER}/alerts.yml\n  - impatient.yml", 1)
        quick = re.sub(r"(_interval|_timeout): \d+s", r"\1: 1s", quick)
        assert quick.count("1s") == 3
        (folder / "prometheus.yml").write_text(quick)
        (folder / "impatient.yml").write_text(fast_alert("ExportChunksNotTaken", {"> 120": "> 1"}))
        [self.port] = ports.free(1)
        self.process = scraper(folder, port=self.port)

    def __enter__(self) -> Self:
        self.process.start()
        try:
            self.process.wait_until(self.is_ready)
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.stop()

    def is_ready(self) -> bool:
        try:
            return self.get("/-/ready")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=20)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def request(self, path: str, **query: Any) -> Any:
        status, body = self.get(f"/api/v1/{path}?{urlencode(query)}")
        response = json.loads(body)
        assert (status, response["status"]) == (200, "success"), (query, response)
        return response["data"]

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.request("rules")["groups"] for rule in group["rules"]]

    def all_are_evaluated(self) -> bool:
        return all(rule["health"] != "unknown" for rule in self.rules())

    def alert(self, name: str) -> str:
        return next(str(rule["state"]) for rule in self.rules() if rule["name"] == name)

    def has_series(self, expression: str, *, seconds: int) -> bool:
        """Return whether a panel would show data for the last `seconds`."""
        now = time.time()
        drawn = self.request("query_range", query=expression, start=now - seconds, end=now, step=1)["result"]
        return any(value != "NaN" for series in drawn for _, value in series["values"])


def fast_alert(alert: str, changes: dict[str, str]) -> str:
    """Return a rule file with one alert, with a `for` of one second and lower thresholds."""
    rule = next(dict(rule) for rule in RULES if rule.get("alert") == alert)
    for before, after in changes.items():
        assert before in rule["expr"]
        rule["expr"] = rule["expr"].replace(before, after)
    rule |= {"alert": f"{alert}Impatient", "for": "1s"}
    return yaml.safe_dump({"groups": [{"name": "impatient", "rules": [rule]}]})


def expand_grafana_variables(expression: str, *, seconds: int) -> str:
    for variable in ("$__rate_interval", "$__range", "$__interval"):
        expression = expression.replace(variable, f"{seconds}s")
    assert "$" not in expression
    return expression


# ---- A run with every series -----------------------------------------------------------------------------------
@dataclass
class Client:
    web: Web
    token: str

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection(LOOPBACK, self.web.port, timeout=60)
        given = {"Authorization": f"Bearer {self.token}", "User-Agent": "tests", "Content-Type": "application/json"}
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method, path, sent, given | {n.replace("_", "-"): v for n, v in headers.items()})
            response = connection.getresponse()
            return response.status, response.read(), dict(response.headers)
        finally:
            connection.close()

    def json(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        status, content, _ = self.request(method, path, body, **headers)
        assert status < 300, content
        return json.loads(content)

    def submit(self, **wanted: Any) -> str:
        return str(self.json("POST", "/exports", {"dataset": "things", **wanted})["jobId"])

    def submit_document(self, text: bytes, *, rule: int | None = None) -> int:
        rule_part = b'--limit\r\nContent-Disposition: form-data; name="rule_id"\r\n\r\n%d\r\n' % rule if rule else b""
        form = (
            rule_part + b'--limit\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n'
            b"Content-Type: text/plain\r\n\r\n" + text + b"\r\n--limit--\r\n"
        )
        made = self.json("POST", "/api/v1/etl/submit", form, Content_Type="multipart/form-data; boundary=limit")
        return int(made["task_id"])

    def status(self, task: int) -> str:
        return str(self.json("GET", f"/api/v1/etl/tasks/{task}?wait=1")["status"])


@pytest.fixture
def web(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    for name, value in {
        "PROMETHEUS_MULTIPROC_DIR": str(workers.root / "metrics"),
        "EXPORT_MAX_ATTEMPTS": "2",
        "EXPORT_BACKOFF_BASE_SECONDS": "0.1",
        "EXPORT_WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
    }.items():
        monkeypatch.setenv(name, value)
    with serving(workers.root, workers.environment()) as running:
        yield running


@pytest.fixture
def client(dataset: Dataset, alice: User, source_db: psycopg.Connection, web: Web) -> Client:
    source_db.execute(FUNCTION.format(down=""))
    return Client(web, token_of(alice))


def produce_every_series(client: Client, source_db: psycopg.Connection) -> None:
    """Run exports that succeed, fail, retry, reuse, and degrade; downloads, webhooks, documents, and streams."""
    with receiver() as hooks:
        hook = {"url": f"{hooks.url}/hook", "events": ["export.succeeded", "export.failed"]}
        client.json("POST", "/exports/webhooks", hook)
        for tick in ("exports.sweep", "exports.purge", "etl.sweep"):  # beat does so within a day
            current_app.send_task(tick)
        task = client.submit_document(b"Hello, world.")
        good = client.submit(items=items("A", "BB", "CCC", "DDDD"))
        client.submit(items=items("A", "REFUSED"))
        client.submit(items=items("BROKEN"))
        events = client.request("GET", f"/exports/{good}/events")[1]
        assert b"success" in events
        wait_until(ended)
        client.submit(items=items("A", "BB", "EEEEE"))
        source_db.execute(FUNCTION.format(down="DDDD"))
        client.submit(items=items("DDDD"), reuse="never")
        wait_until(ended)
        link = client.json("GET", f"/exports/{good}")["receipt"]["signedUrl"]
        path = link.partition(f":{client.web.port}")[2]
        assert [client.request("GET", path)[0] for _ in "12"] == [302, 403]
        wait_until(lambda: client.status(task) == "completed")
        wait_until(lambda: Delivery.objects.filter(status="delivered").count() >= 4)
    assert set(Job.objects.values_list("status", flat=True)) == {"success", "failed"}


@pytest.mark.timeout(400)
def test_rules_and_panels_query_existing_metrics_and_alerts_fire(
    client: Client, source_db: psycopg.Connection, workers: Workers
) -> None:
    worker = workers.start(ALL, concurrency=3)
    workers.start_beat()
    with Prometheus(workers.root / "prometheus", f"{LOOPBACK}:{client.web.port}") as prometheus:
        wait_until(lambda: prometheus.request("query", query="sluice_database_up")["result"])
        began = time.time()
        produce_every_series(client, source_db)
        text = client.request("GET", "/metrics")[1].decode()
        assert_metrics_exist(Exposition.parse(text))
        assert_rules_are_healthy(prometheus)
        assert_panels_have_data(prometheus, client, since=began)
        assert_scalers_get_one_number(prometheus)

        # Without its worker, no process claims chunks.
        assert prometheus.alert("ExportChunksNotTakenImpatient") == "inactive"
        worker.stop()
        client.submit(items=items("LATER"))
        wait_until(lambda: prometheus.alert("ExportChunksNotTakenImpatient") == "firing")
        wait_until(
            lambda: prometheus.request("query", query=PANELS[0]["targets"][0]["expr"])["result"][0]["value"][1] != "0"
        )


def assert_rules_are_healthy(prometheus: Prometheus) -> None:
    wait_until(prometheus.all_are_evaluated)
    loaded = prometheus.rules()
    assert {rule["name"] for rule in loaded} >= {str(rule.get("alert") or rule["record"]) for rule in RULES}
    assert [(rule["name"], rule.get("lastError")) for rule in loaded if rule["health"] != "ok"] == []


def assert_panels_have_data(prometheus: Prometheus, client: Client, *, since: float) -> None:
    """Assert that every panel query is valid and has data, except for failures that this run does not cause."""

    def is_drawn() -> bool:
        client.request("GET", "/exports")  # without requests, there is no rate
        return empty_panels(prometheus, seconds=int(time.time() - since) + 2) <= EMPTY_WITHOUT_FAILURES

    try:
        wait_until(is_drawn, every=1, limit=120)
    finally:
        left = empty_panels(prometheus, seconds=int(time.time() - since) + 2)
        assert sorted(left - EMPTY_WITHOUT_FAILURES) == []


def empty_panels(prometheus: Prometheus, *, seconds: int) -> set[str]:
    queries = {
        f"{panel['title']}: {target['legendFormat']}": target["expr"] for panel in PANELS for target in panel["targets"]
    }
    return {
        name
        for name, expression in queries.items()
        if not prometheus.has_series(expand_grafana_variables(expression, seconds=seconds), seconds=seconds)
    }


def assert_scalers_get_one_number(prometheus: Prometheus) -> None:
    """KEDA accepts a query result of one number only."""
    for query in scaling_queries():
        result = prometheus.request("query", query=query)["result"]
        assert len(result) == 1, query
