"""Others that Sluice calls or is called by: the language model, MinerU, receivers of webhooks, its own web process."""

import os
import socket
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

import requests
from psycopg.conninfo import conninfo_to_dict

from config.env import Environment
from config.ops.doctor import environment
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning

SECONDS = 4
INSIDE_OF_CLOUDS = ip_address("169.254.169.254")  # where machines of clouds are told their credentials
REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


def check_model(env: Environment) -> Iterator[Finding]:
    if env.etl_llm_base_url is None:
        yield ok("No language model is set up; rules of the mode llm say so.")
        return
    key = env.etl_llm_api_key.get_secret_value() if env.etl_llm_api_key else ""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    status = status_of(f"{str(env.etl_llm_base_url).rstrip('/')}/models", headers)
    yield judge(
        status,
        what="The language model's server",
        variables="ETL_LLM_BASE_URL",
        key="ETL_LLM_API_KEY",
        worker="worker-etl-postprocess",
    )


def check_ocr(env: Environment) -> Iterator[Finding]:
    if env.etl_ocr_provider != "mineru":
        yield ok("Documents are read here, without another server.")
        return
    base = str(env.etl_mineru_url).rstrip("/")
    key = env.etl_mineru_api_key.get_secret_value() if env.etl_mineru_api_key else ""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    newer = status_of(f"{base}/v1/health", headers)
    status = status_of(f"{base}/health", headers) if newer == HTTPStatus.NOT_FOUND else newer
    yield judge(
        status, what="The MinerU server", variables="ETL_MINERU_URL", key="ETL_MINERU_API_KEY", worker="worker-etl-ocr"
    )


def check_collector(env: Environment) -> Iterator[Finding]:
    if not env.tracing:
        yield ok("No traces are sent.")
        return
    collector = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318"
    if status_of(os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or collector) is None:
        yield warning(
            f"The collector of traces does not answer within {SECONDS} seconds: they are lost, and nothing else is.",
            "See that it runs, and that OTEL_EXPORTER_OTLP_ENDPOINT leads there from here, by HTTP: docs/tracing.md.",
        )
    else:
        yield ok("The collector of traces answers.")


def judge(status: int | None, *, what: str, variables: str, key: str, worker: str) -> Finding:
    if status is None:
        return failure(
            f"{what} does not answer within {SECONDS} seconds: documents wait for it, then fail.",
            f"See that it runs, and that {variables} leads there from here: docs/runbook.md#documents-are-stuck. "
            f"Where only {worker} may reach it, run doctor there.",
        )
    if status in REFUSED:
        return failure(f"{what} refuses our key ({status}).", f"Set {key} to a key that it knows.")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return failure(f"{what} answers with {status}.", "Look at its own log; documents are tried again meanwhile.")
    return ok(f"{what} answers.")


def status_of(url: str, headers: dict[str, str] | None = None) -> int | None:
    with requests.Session() as session:
        session.trust_env = False
        try:
            with session.get(url, headers=headers, timeout=SECONDS, allow_redirects=False, stream=True) as answer:
                return answer.status_code
        except requests.RequestException:
            return None


# ---- Webhooks -------------------------------------------------------------------------------------------------------


def check_webhooks(env: Environment) -> Iterator[Finding]:
    """Users choose where webhooks go: which inner places did the operator open to them?"""
    allowed = env.export_webhook_allow_cidrs
    if any(INSIDE_OF_CLOUDS in network for network in allowed if network.version == INSIDE_OF_CLOUDS.version):
        yield failure(
            "EXPORT_WEBHOOK_ALLOW_CIDRS holds 169.254.169.254, where a cloud tells a machine its credentials.",
            "Name the networks of receivers alone, such as 10.1.2.0/24.",
        )
    elif opened := sorted(
        {name for name, address in own_servers(env) if any(address_in(address, each) for each in allowed)}
    ):
        yield warning(
            f"EXPORT_WEBHOOK_ALLOW_CIDRS holds the address of {', '.join(opened)}: users may have it posted to.",
            "Name the networks of receivers alone, and keep our own servers out of them.",
        )
    else:
        yield ok("Webhooks reach no inner network but those that are named." if allowed else "Webhooks stay outside.")


def own_servers(env: Environment) -> Iterator[tuple[str, str]]:
    for name in ("database_url", "source_database_url"):
        if url := getattr(env, name):
            hosts = str(conninfo_to_dict(url.get_secret_value()).get("host") or "")
            yield from addresses_of(name, hosts.split(","))
    for name in ("redis_url", "celery_broker_url", "etl_redis_url"):
        if url := getattr(env, name):
            yield from addresses_of(name, [urlsplit(each).hostname or "" for each in url.get_secret_value().split(";")])
    for name in ("s3_endpoint_url", "etl_mineru_url", "etl_llm_base_url"):
        yield from addresses_of(name, [urlsplit(str(getattr(env, name) or "")).hostname or ""])


def addresses_of(name: str, hosts: list[str]) -> Iterator[tuple[str, str]]:
    for host in filter(None, hosts):
        with suppress(OSError, UnicodeError):
            for answer in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
                yield name.upper(), str(answer[4][0])


def address_in(address: str, network: object) -> bool:
    with suppress(ValueError):
        found, range_ = ip_address(address.partition("%")[0]), ip_network(str(network))
        return found.version == range_.version and found in range_
    return False


SUBJECT = Subject(
    name="peers",
    open=environment.open_environment,
    checks=(check_model, check_ocr, check_collector, check_webhooks),
    away=environment.AWAY,
)


# ---- The web process ------------------------------------------------------------------------------------------------


def web(url: str) -> Subject[str]:
    """Return the subject of a web process at this address, which no setting knows."""
    return Subject(
        name="web",
        open=lambda: nullcontext(url.rstrip("/")),
        checks=(check_readiness,),
        away="See that a web process runs there.",
    )


def check_readiness(url: str) -> Iterator[Finding]:
    status = status_of(f"{url}/readyz")
    if status is None:
        yield failure("It does not answer.", "Start it, and see that the address is right: /livez says that it runs.")
    elif status == HTTPStatus.BAD_REQUEST:
        yield failure("It refuses the address.", "Add the host of the address to ALLOWED_HOSTS.")
    elif status != HTTPStatus.OK:
        yield failure(f"/readyz answers with {status}.", "Its answer names what is missing: curl …/readyz.")
    else:
        yield ok("It is ready.")
