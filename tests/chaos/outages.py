"""One server that cannot decide: silent, out of memory, loading, of another password, without its scripts."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

from headgate.stores.breaker import GRACE_SECONDS
from tests.chaos.callers import (
    Breakers,
    by_store,
    entries_of,
    in_time,
    percentile_ms,
    rules,
    tell,
    undecided,
    under_load,
)
from tests.chaos.case import HEALED_S, Case, Figures
from tests.integration.limiters import calm
from tests.integration.load import BY_STORE, Callers
from tests.proxy import Proxy
from tests.servers import Server, default_binary
from tests.topologies import halt, kill, resume

GIVEN = rules({"user": calm(1_000_000, "fixed_window")})
REASONS = {"open": "fail_open", "closed": "fail_closed", "local": "local_fallback"}
GROWTH_MB = 50
PASSWORD = "right"
WAITED_S = 0.15  # a check that took longer has waited for the server


def ask(number: int) -> dict[str, str]:
    return {"user": f"user-{number % 100}"}


def resident_mb() -> float:
    """What this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4_096 / 1_000_000


def healed(figures: Figures, loads: Sequence[Callers], since: float) -> None:
    """How long it took until the store decided again, for whoever waited longest."""
    figures.healed("strict again after", since, max(load.decided_after(since) for load in loads), HEALED_S)


def frozen(figures: Figures, quick: bool) -> None:
    """Stopped by a signal: connections are accepted, by its kernel; nothing is ever answered."""
    seconds = 3 if quick else 30
    with Server(default_binary()) as server, Breakers() as breakers:
        with under_load(server.url, GIVEN, ask) as loads:
            time.sleep(1)
            before = most = resident_mb()
            breakers.opened.clear()
            began = time.monotonic()
            halt(server)
            while time.monotonic() < began + seconds:
                time.sleep(0.25)
                most = max(most, resident_mb())
            resume(server)
            back = time.monotonic()
            healed(figures, loads, back)
        opened = sorted(breakers.opened)[: len(loads)]
    gone(figures, loads, began, back)
    figures.exactly("breakers opened", len(opened), len(loads))
    figures.within("… after", max(opened, default=began) - began, 1.0, "s")
    figures.at_most("growth of memory", most - before, float(GROWTH_MB), "MB")


def dead(figures: Figures, quick: bool) -> None:
    """Killed: connections are reset, and then refused."""
    with Server(default_binary()) as server, under_load(server.url, GIVEN, ask) as loads:
        time.sleep(1)
        began = time.monotonic()
        kill(server)
        time.sleep(2 if quick else 5)
        server.stop()
        server.start()
        back = time.monotonic()
        healed(figures, loads, back)
    gone(figures, loads, began, back)


def gone(figures: Figures, loads: Sequence[Callers], began: float, back: float) -> None:
    """What a server costs its callers that is gone between two moments: their timeout in the first second, at most."""
    entries = tell(figures, loads, began)
    later = in_time(figures, entries_of(loads, began + GRACE_SECONDS, back))
    figures.within("p99 after the first second, but for the machine", percentile_ms(later, 0.99), 1.0, "ms")
    waited = sum(entry.seconds > WAITED_S for entry in entries)
    figures.note("checks that waited for the server", f"{waited} of {len(entries):,}")


def half_open(figures: Figures, quick: bool) -> None:
    """Connections on which nothing comes back any more, and then others that are reset; a new one would do."""
    rounds = 2 if quick else 5
    with (
        Server(default_binary()) as server,
        Proxy(server.port) as proxy,
        under_load(proxy.url, GIVEN, ask) as loads,
    ):
        figures.witness.watch(server.pid)
        began, healing = time.monotonic(), []
        for number in range(2 * rounds):
            known = list(proxy.links)
            moment = time.monotonic()
            for link in known:
                link.cut() if number % 2 else link.hold()
            healing.append((max(load.decided_after(moment + 0.05) for load in loads) + 0.05, moment))
            time.sleep(0.2)
    entries = tell(figures, loads, began)
    seconds, moment = max(healing)
    figures.healed("strict again after", moment, seconds, HEALED_S)
    figures.note("admitted by failure mode", f"{len(entries) - by_store(entries)} in {2 * rounds} rounds")


def script_flush(figures: Figures, quick: bool) -> None:
    over = Event()

    def flush() -> None:
        with server.client() as client:
            while not over.wait(0.1):
                client.script_flush()

    with Server(default_binary()) as server, under_load(server.url, GIVEN, ask, failure_mode="closed") as loads:
        figures.witness.watch(server.pid)
        flusher = Thread(target=flush)
        began = time.monotonic()
        flusher.start()
        time.sleep(1.5 if quick else 5)
        over.set()
        flusher.join()
    entries = tell(figures, loads, began)
    undecided(figures, "not decided by the store", entries)


@contextmanager
def in_every_mode(url: str) -> Iterator[dict[str, list[Callers]]]:
    with ExitStack() as stack:
        yield {
            mode: stack.enter_context(under_load(url, GIVEN, ask, failure_mode=mode, pause=0.02)) for mode in REASONS
        }


def policy(figures: Figures, loads: dict[str, list[Callers]], since: float, until: float) -> None:
    """Whether failure modes decided whatever the store did not."""
    tell(figures, [each for some in loads.values() for each in some], since)
    strange = sum(
        entry.reason not in (*BY_STORE, REASONS[mode])
        for mode, some in loads.items()
        for entry in entries_of(some, since)
    )
    figures.exactly("decided against the failure mode", strange)
    during = [entry for some in loads.values() for entry in entries_of(some, since, until)]
    figures.note("decided by failure modes meanwhile", f"{len(during) - by_store(during):,} of {len(during):,}")


def out_of_memory(figures: Figures, quick: bool) -> None:
    with Server(default_binary(), ("--maxmemory-policy", "noeviction")) as server, server.client() as client:
        with in_every_mode(server.url) as loads:
            client.config_set("maxmemory", 1)
            began = time.monotonic()
            time.sleep(2)
            client.config_set("maxmemory", 0)
            over = time.monotonic()
            healed(figures, [each for some in loads.values() for each in some], over)
        policy(figures, loads, began, over)


def wrong_password(figures: Figures, quick: bool) -> None:
    """It is changed, and all connections are ended: who is connected would stay so."""
    with Server(default_binary()) as server, server.client() as client:
        client.config_set("requirepass", PASSWORD)
        with in_every_mode(server.url.replace("//", f"//:{PASSWORD}@")) as loads:
            client.config_set("requirepass", "another")
            client.client_kill_filter(_type="normal", skipme=True)
            began = time.monotonic()
            time.sleep(2)
            client.config_set("requirepass", PASSWORD)
            over = time.monotonic()
            healed(figures, [each for some in loads.values() for each in some], over)
        policy(figures, loads, began, over)


def loading(figures: Figures, quick: bool) -> None:
    """It is killed, and takes two seconds to read its data when it is started again."""
    binary = default_binary()
    with tempfile.TemporaryDirectory(prefix="headgate-loading-") as directory:
        options = ("--dir", directory, "--enable-debug-command", "yes")
        slow = ("--key-load-delay", "4000", "--loading-process-events-interval-bytes", "1024")
        with Server(binary, options) as server, server.client() as client:
            for n in range(500):
                client.set(f"key-{n}", "x" * 200)
            with in_every_mode(server.url) as loads:
                client.save()
                server.stop()
                began = time.monotonic()
                with Server(binary, (*options, *slow), port=server.port, patient=False):
                    while _is_loading(server):
                        time.sleep(0.005)
                    over = time.monotonic()
                    healed(figures, [each for some in loads.values() for each in some], over)
            figures.note("loaded for", f"{over - began:.1f} s")
            policy(figures, loads, began, over)


def _is_loading(server: Server) -> bool:
    with server.client() as client:
        return bool(client.info("persistence")["loading"])


CASES = (
    Case("frozen", "a server that does not answer (SIGSTOP)", frozen, quick=True),
    Case("dead", "a server that is killed, and started again", dead, quick=True),
    Case("half-open", "connections that fall silent, or are reset", half_open, quick=True),
    Case("script-flush", "SCRIPT FLUSH every 100 ms", script_flush, quick=True),
    Case("out-of-memory", "OOM, with noeviction", out_of_memory),
    Case("wrong-password", "another password", wrong_password, quick=True),
    Case("loading", "LOADING", loading),
)
