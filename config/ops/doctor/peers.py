"""Checks of peers: the language model, MinerU, the trace collector, the OpenID provider, and the web process.

Also checks which networks webhooks may reach.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

import httpx2
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from config.env import Environment
from config.ops.doctor.findings import Finding, Level, Subject, failure, ok, warning
from config.platform.http import health, outbound, single_sign_on
from config.platform.http.addresses import Address, parse, within
from config.platform.http.outbound import Deadline
from config.platform.observability import logs
from etl.postprocessors import server_features
from etl.postprocessors.server_features import JsonMode

TIMEOUT_SECONDS = 4
METADATA_SERVICE = ip_address("169.254.169.254")  # serves credentials to cloud instances
REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


def check_model(env: Environment) -> Finding:
    if env.etl_llm_base_url is None:
        return ok("No language model is configured; rules of mode llm fail with llm_unavailable.")
    status = status_of(f"{str(env.etl_llm_base_url).rstrip('/')}/models", bearer(env.etl_llm_api_key))
    finding = finding_for(
        status,
        server="The language model's server",
        url="ETL_LLM_BASE_URL",
        key="ETL_LLM_API_KEY",
        worker="worker-etl-postprocess",
    )
    return finding if finding.level is not Level.OK else ok(f"{finding.state} {structured_output(env)}")


STRUCTURED_OUTPUT = {
    JsonMode.STRICT: "It enforces the schemas of rules (json_schema with strict).",
    JsonMode.JSON_SCHEMA: "It accepts the schemas of rules, but rejects strict (json_schema).",
    JsonMode.JSON_OBJECT: "It rejects schemas: responses are JSON, and schemas are only in the prompt (json_object).",
    JsonMode.TEXT: "It rejects response_format: JSON is requested by the prompt alone.",
}


def structured_output(env: Environment) -> str:
    """Describe the server features that workers have detected."""
    known = server_features.load(str(env.etl_llm_base_url), env.etl_llm_model)
    return (
        STRUCTURED_OUTPUT[known.json_mode] if known else "The next document will determine which JSON mode it supports."
    )


def check_ocr(env: Environment) -> Finding:
    if env.etl_ocr_provider == "local":
        return ok("OCR runs in the workers, without another server.")
    if env.etl_ocr_provider != "mineru":
        return ok("ETL_OCR_PROVIDER is a class of your own. Servers that it uses are not checked.")
    base = str(env.etl_mineru_url).rstrip("/")
    headers = bearer(env.etl_mineru_api_key)
    status = status_of(f"{base}/v1/health", headers)
    if status == HTTPStatus.NOT_FOUND:  # MinerU before 4.0
        status = status_of(f"{base}/health", headers)
    return finding_for(
        status, server="The MinerU server", url="ETL_MINERU_URL", key="ETL_MINERU_API_KEY", worker="worker-etl-ocr"
    )


def bearer(key: SecretStr | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.get_secret_value()}"} if key and key.get_secret_value() else {}


def check_collector(env: Environment) -> Finding:
    if not env.tracing:
        return ok("Tracing is off.")
    collector = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318"
    if status_of(os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or collector) is None:
        return warning(
            f"The trace collector does not respond within {TIMEOUT_SECONDS} seconds: traces are lost.",
            "Check that it is running and that OTEL_EXPORTER_OTLP_ENDPOINT is its HTTP address: docs/tracing.md.",
        )
    return ok("The trace collector responds.")


def finding_for(status: int | None, *, server: str, url: str, key: str, worker: str) -> Finding:
    if status is None:
        return failure(
            f"{server} does not respond within {TIMEOUT_SECONDS} seconds: documents wait for it, then fail.",
            f"Check that it is running and that {url} points to it: docs/runbook.md#documents-are-stuck. "
            f"If only {worker} can reach it, run the doctor there.",
        )
    if status in REFUSED:
        return failure(f"{server} rejects the API key (status {status}).", f"Set {key} to a valid key.")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return failure(f"{server} returns status {status}.", "See its own log; documents are retried meanwhile.")
    return ok(f"{server} responds.")


def status_of(url: str, headers: dict[str, str] | None = None) -> int | None:
    try:
        with outbound.Client(Deadline(TIMEOUT_SECONDS)) as client, client.send("GET", url, headers=headers) as response:
            return response.status_code
    except (httpx2.TransportError, httpx2.InvalidURL):
        return None


def check_identity_provider(env: Environment) -> Finding:
    if env.oidc_issuer is None:
        return ok("Single sign-on is off.")
    try:
        single_sign_on.provider()
    except single_sign_on.FAILURES as error:
        return failure(
            f"The OpenID provider's metadata cannot be read ({logs.describe(error)}): single sign-on fails, and "
            "users who signed in with it are refused when their last check is "
            f"{single_sign_on.PATIENCE.seconds // 60} minutes old. "
            "Local accounts still work.",
            "Check that the provider runs and can be reached from here, and that OIDC_ISSUER is exactly the issuer in "
            "its metadata: docs/runbook.md#the-identity-provider-does-not-respond.",
        )
    return ok("The OpenID provider responds.")


# ---- Webhooks -------------------------------------------------------------------------------------------------------


def check_webhooks(env: Environment) -> Finding:
    """Check EXPORT_WEBHOOK_ALLOW_CIDRS, the internal servers that users can reach through URLs of webhooks."""
    allowed = env.export_webhook_allow_cidrs
    if within(METADATA_SERVICE, allowed):
        return failure(
            "EXPORT_WEBHOOK_ALLOW_CIDRS contains 169.254.169.254, the cloud metadata service with its credentials.",
            "Set it to the networks of webhook receivers only, such as 10.1.2.0/24.",
        )
    if opened := sorted({name for name, address in own_servers(env) if within(address, allowed)}):
        return warning(
            f"EXPORT_WEBHOOK_ALLOW_CIDRS contains the address of {', '.join(opened)}: users can send webhooks there.",
            "Set it to the networks of webhook receivers only, without Sluice's own servers.",
        )
    if allowed:
        return ok("Webhooks reach only the internal networks in EXPORT_WEBHOOK_ALLOW_CIDRS.")
    return ok("Webhooks reach no internal network.")


def own_servers(env: Environment) -> Iterator[tuple[str, Address]]:
    for name in ("database_url", "source_database_url"):
        if url := getattr(env, name):
            hosts = str(conninfo_to_dict(url.get_secret_value()).get("host") or "")
            yield from addresses_of(name, hosts.split(","))
    for name in ("redis_url", "celery_broker_url", "etl_redis_url"):
        if url := getattr(env, name):
            yield from addresses_of(name, [urlsplit(each).hostname or "" for each in url.get_secret_value().split(";")])
    for name in ("s3_endpoint_url", "etl_mineru_url", "etl_llm_base_url"):
        yield from addresses_of(name, [urlsplit(str(getattr(env, name) or "")).hostname or ""])


def addresses_of(name: str, hosts: list[str]) -> Iterator[tuple[str, Address]]:
    for host in filter(None, hosts):
        with suppress(OSError, UnicodeError):
            for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
                if found := parse(str(address[0])):
                    yield name.upper(), found


SUBJECT = Subject(
    name="peers",
    open=lambda: nullcontext(settings.SLUICE),
    checks=(check_model, check_ocr, check_collector, check_identity_provider, check_webhooks),
    remedy_if_unreachable="Check the settings: python manage.py check.",
)


# ---- The web process ------------------------------------------------------------------------------------------------


def web(url: str) -> Subject[str]:
    """Return the subject of the web process. The URL is an argument because no setting contains it."""
    return Subject(
        name="web",
        open=lambda: nullcontext(url.rstrip("/")),
        checks=(check_readiness,),
        remedy_if_unreachable="Check that a web process is running at this URL.",
    )


def check_readiness(url: str) -> Finding:
    status = status_of(f"{url}/readyz")
    if status is None:
        return failure(
            f"It {health.SILENT}.", "Start it, and check the URL: /livez responds if the process is running."
        )
    if status == HTTPStatus.BAD_REQUEST:
        return failure("It rejects the host name.", "Add the URL's host to ALLOWED_HOSTS.")
    if status != HTTPStatus.OK:
        return failure(f"/readyz returns status {status}.", "Its response names the part that failed: curl …/readyz.")
    return ok("It is ready.")
