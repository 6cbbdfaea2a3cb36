"""The faults of a soak test. Each is injected into a running site, and removed after its duration.

The schedule is computed from a seed in advance. The same seed produces the same faults at the same times, with the same
selection among the running processes.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from config.dev.stack import process_tree
from config.dev.stack.process import Process
from tests.broker import valkey
from tests.chaos.documents import ALL
from tests.chaos.points import POINTS
from tests.chaos.proxy import Proxy
from tests.chaos.site import Site
from tests.integration import faulty_s3

MAX_SECONDS = 6.0  # longest duration of a fault: two leases
CRASH_POINTS = sorted(name for name in POINTS if name != "reaper took back")


@dataclass(frozen=True)
class Fault:
    """`at` and `seconds`: offset from the start of the soak, and duration. `pick` selects a running process."""

    at: float
    kind: str
    seconds: float
    pick: int


def schedule(random: Random, seconds: float, *, every: float) -> list[Fault]:
    """Return a schedule of faults for a number of seconds, with one per `every` seconds on average.

    The kinds are used in random order, each once per round, so that none is omitted.
    """
    faults: list[Fault] = []
    kinds: list[str] = []
    at = every
    while at < seconds:
        if not kinds:
            kinds = random.sample(sorted(KINDS), len(KINDS))
        faults.append(Fault(at, kinds.pop(), random.uniform(0.5, MAX_SECONDS), random.randrange(1_000_000)))
        at += random.uniform(0.5, 1.5) * every
    return faults


class FaultInjector:
    def __init__(self, site: Site) -> None:
        self.site = site

    def inject(self, fault: Fault) -> None:
        """Inject the fault, and return after its end."""
        KINDS[fault.kind](self, fault)

    # ---- Workers ----------------------------------------------------------------------------------------------------

    def kill_child(self, fault: Fault) -> None:
        if children := sorted(self.site.children()):
            process_tree.send(children[fault.pick % len(children)], signal.SIGKILL)

    def kill_worker(self, fault: Fault) -> None:
        worker = self.worker(fault)
        worker.kill()
        time.sleep(fault.seconds)
        worker.start()

    def stop_child(self, fault: Fault) -> None:
        if children := sorted(self.site.children()):
            pid = children[fault.pick % len(children)]
            process_tree.send(pid, signal.SIGSTOP)
            time.sleep(fault.seconds)
            process_tree.send(pid, signal.SIGCONT)

    def terminate_worker(self, fault: Fault) -> None:
        worker = self.worker(fault)
        worker.stop()
        worker.start()

    def crash_at_point(self, fault: Fault) -> None:
        self.site.points.arm(CRASH_POINTS[fault.pick % len(CRASH_POINTS)], "die")

    def kill_beat(self, fault: Fault) -> None:
        beat = self.site.beats[fault.pick % len(self.site.beats)]
        beat.kill()
        time.sleep(fault.seconds)
        beat.start()

    def kill_web(self, _fault: Fault) -> None:
        assert self.site.web
        self.site.web.kill()
        self.site.web.start()

    def worker(self, fault: Fault) -> Process:
        return self.site.workers[fault.pick % len(self.site.workers)]

    # ---- The broker -------------------------------------------------------------------------------------------------

    def flush_broker(self, _fault: Fault) -> None:
        valkey().flushall()

    def restart_broker_empty(self, _fault: Fault) -> None:
        self.site.restart_broker_empty()

    def triple_messages(self, fault: Fault) -> None:
        broker, random = valkey(), Random(fault.pick)
        for queue in ALL.split(","):
            messages = broker.lrange(queue, 0, 200) * 2
            random.shuffle(messages)
            if messages:
                broker.lpush(queue, *messages)

    # ---- The database ----------------------------------------------------------------------------------------------

    def restart_database(self, _fault: Fault) -> None:
        server = self.site.servers.postgres
        process_tree.send(server.pid, signal.SIGQUIT)  # the signal of `pg_ctl stop -m immediate`
        server.started().wait(20)
        server.start()

    def end_sessions(self, _fault: Fault) -> None:
        self.site.end_sessions()

    def lose_commit(self, _fault: Fault) -> None:
        self.site.postgres.lose_reply_to("COMMIT")

    # ---- Connections -----------------------------------------------------------------------------------------------

    def stall(self, fault: Fault) -> None:
        self.disturb(fault, Proxy.stall)

    def refuse(self, fault: Fault) -> None:
        self.disturb(fault, Proxy.refuse)

    def slow_down(self, fault: Fault) -> None:
        self.disturb(fault, lambda proxy: proxy.slow(200_000))

    def reset(self, fault: Fault) -> None:
        self.proxy(fault).reset()

    def disturb(self, fault: Fault, start: Callable[[Proxy], None]) -> None:
        proxy = self.proxy(fault)
        start(proxy)
        time.sleep(fault.seconds)
        proxy.remove_faults()

    def refuse_writes(self, fault: Fault) -> None:
        """Make the object storage refuse every write request of a worker."""
        assert self.site.object_proxy
        refusal = REFUSALS[fault.pick % len(REFUSALS)]
        for method in ("PUT", "POST", "DELETE"):
            self.site.object_proxy.inject(method, "", refusal, times=1_000_000)
        time.sleep(fault.seconds)
        self.site.object_proxy.faults.clear()

    def proxy(self, fault: Fault) -> Proxy:
        return self.site.proxies[fault.pick % len(self.site.proxies)]


def answer_503(handler: faulty_s3.Handler, _body: bytes) -> None:
    handler.answer(503, [], b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Later.</Message></Error>")


def answer_403(handler: faulty_s3.Handler, _body: bytes) -> None:
    handler.answer(403, [], b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>No.</Message></Error>")


REFUSALS = [faulty_s3.answer_500, answer_503, answer_403]

KINDS: dict[str, Callable[[FaultInjector, Fault], None]] = {
    "kill -9 of a child": FaultInjector.kill_child,
    "kill -9 of a worker": FaultInjector.kill_worker,
    "SIGSTOP and SIGCONT of a child": FaultInjector.stop_child,
    "SIGTERM of a worker": FaultInjector.terminate_worker,
    "kill -9 at a point": FaultInjector.crash_at_point,
    "kill -9 of a beat": FaultInjector.kill_beat,
    "kill -9 of the web process": FaultInjector.kill_web,
    "FLUSHALL": FaultInjector.flush_broker,
    "broker restarted empty": FaultInjector.restart_broker_empty,
    "messages tripled, shuffled": FaultInjector.triple_messages,
    "database restarted at once": FaultInjector.restart_database,
    "all sessions terminated": FaultInjector.end_sessions,
    "reply to COMMIT lost": FaultInjector.lose_commit,
    "a connection stalls": FaultInjector.stall,
    "connections are refused": FaultInjector.refuse,
    "a connection is slow": FaultInjector.slow_down,
    "connections are reset": FaultInjector.reset,
    "storage refuses writes": FaultInjector.refuse_writes,
}
