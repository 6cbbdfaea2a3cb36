"""A managed Redis: TLS only, with a user and a password, and without administrative commands.

stunnel terminates TLS in front of Valkey, because the tests' Valkey does not support TLS. Clients see no difference.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from django.conf import LazySettings
from pydantic import SecretStr

from config.celery import app
from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.ports import LOOPBACK
from config.ops.doctor import examination
from config.ops.doctor import redis as doctor
from config.ops.doctor.findings import Level
from config.platform import broker
from config.platform.http import health
from tests import servers
from tests.chaos.documents import ALL, code_of, scripted_rule, settle, submit
from tests.chaos.site import Site
from tests.operations.stunnel import Authority, Stunnel

USER, PASSWORD = "managed", "a/b+c%d"  # with characters that a URL must quote
QUOTED = "a%2Fb%2Bc%25d"
# The commands of a typical provider: no CONFIG, SAVE, SHUTDOWN, or DEBUG, and few other dangerous ones.
RIGHTS = ("reset", "on", f">{PASSWORD}", "~*", "&*", "+@all", "-@admin", "-@dangerous", "+info")


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    """The authority of the server's certificate, and another one."""
    folder = tmp_path_factory.mktemp("authorities")
    return Authority(folder, "ours"), Authority(folder, "another")


@pytest.fixture(scope="module")
def managed(authorities: tuple[Authority, Authority], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stunnel]:
    (running,) = servers.started
    root = tmp_path_factory.mktemp("stunnel")
    certificate, key = authorities[0].issue(LOOPBACK)
    server = Stunnel(root, KeptSettings(root), to=running.valkey.url(), certificate=certificate, key=key)
    with redis.Redis.from_url(running.valkey.url()) as administrator:
        administrator.execute_command("ACL", "SETUSER", USER, *RIGHTS)
        server.start()
        try:
            yield server
        finally:
            server.stop()
            administrator.execute_command("ACL", "DELUSER", USER)


def url_of(server: Stunnel, authority: Authority | None, **options: str) -> str:
    options = {**({"ssl_ca_certs": str(authority.certificate)} if authority else {}), **options}
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"rediss://{USER}:{QUOTED}@{LOOPBACK}:{server.port}/0?{query}".removesuffix("?")


def test_exports_and_documents_work_over_redis_tls(
    site: Site, managed: Stunnel, authorities: tuple[Authority, Authority]
) -> None:
    """C7."""
    site.variables["REDIS_URL"] = url_of(managed, authorities[0])
    site.start_web()
    site.start_worker(ALL)
    site.start_beat()
    job = site.submit("A", "B", days=2)
    task = submit(site, "once:raise ProviderUnavailable\npost:wait 0.1", rule=scripted_rule(site))
    site.settle(job)
    settle(task)

    assert (job.status, site.source.calls()) == ("success", 4)
    assert code_of(task) == ("completed", "postprocess")
    assert site.client.get("/readyz").json()["checks"]["broker"] == "ok"
    assert "NOPERM" not in site.logs()
    assert QUOTED not in site.logs()
    assert PASSWORD not in site.logs()


@pytest.mark.parametrize("options", [{}, {"ssl_cert_reqs": "required"}])
def test_a_certificate_of_another_authority_is_refused_with_the_reason(
    site: Site, managed: Stunnel, authorities: tuple[Authority, Authority], options: dict[str, str]
) -> None:
    """Also without `?ssl_cert_reqs=`: only `none` disables the check.

    Work that is accepted in the meantime waits for the broker.
    """
    jobs = []
    for authority in (authorities[1], None):
        site.variables["REDIS_URL"] = url_of(managed, authority, **options)
        site.start_web()
        ready = site.client.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["broker"]) == (503, health.UNTRUSTED)
        jobs.append(site.submit("A" if authority else "B"))
        assert site.web
        site.web.stop()
        assert "wakeup_not_sent" in site.logs()
        assert '"job_accepted"' in site.logs()
    site.variables["REDIS_URL"] = url_of(managed, authorities[0])
    site.start_worker()
    site.start_beat()
    site.settle(*jobs)
    assert [job.status for job in jobs] == ["success"] * 2


def test_workers_verify_the_certificate_like_the_web_process(
    managed: Stunnel, authorities: tuple[Authority, Authority], settings: LazySettings
) -> None:
    """By default, kombu would accept any certificate for a bare `rediss://`."""
    for url, trusted in {
        url_of(managed, authorities[0]): True,
        url_of(managed, None, ssl_cert_reqs="none"): True,
        url_of(managed, authorities[1]): False,
        url_of(managed, None): False,
        # A name that is not in the certificate.
        url_of(managed, authorities[0]).replace(f"@{LOOPBACK}", "@localhost"): False,
        url_of(managed, authorities[0], ssl_check_hostname="false").replace(f"@{LOOPBACK}", "@localhost"): True,
    }.items():
        settings.SLUICE = settings.SLUICE.model_copy(update={"celery_broker_url": SecretStr(url)})
        assert health.outcome("broker", health.check_broker) == ("ok" if trusted else health.UNTRUSTED), urlsplit(
            url
        ).query
        connection: Any
        with app.connection_for_write(url=url, ssl=broker.tls(url)) as connection:
            expected = nullcontext() if trusted else pytest.raises(redis.ConnectionError, match="VERIFY_FAILED")
            with expected:
                connection.channel().client.ping()


def test_the_doctor_verifies_the_certificate_with_several_brokers(
    managed: Stunnel, authorities: tuple[Authority, Authority], settings: LazySettings
) -> None:
    """Otherwise it would send the password to any server, and report success."""
    for authority, level in ((authorities[0], Level.OK), (None, Level.FAILURE)):
        url = url_of(managed, authority)
        settings.SLUICE = settings.SLUICE.model_copy(update={"celery_broker_url": SecretStr(f"{url};{url}")})
        (found,) = examination.examine([next(each for each in doctor.subjects() if each.name == "broker")])
        assert found.finding.level is level, found.finding.state
