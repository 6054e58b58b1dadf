"""`python -m benchmarks`: Headgate beside its peers, on this machine, in one run.

    python -m benchmarks                      all sections, some twenty minutes
    python -m benchmarks --quick              all but web, service, shards and console, in some two, less exact
    python -m benchmarks --only memory async  some sections

A missed target is reported and fails nothing. docs/benchmarks.md says what is measured and how it is kept
fair.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from time import monotonic

from rich.console import Console

from benchmarks import (
    cluster,
    contenders,
    footprint,
    leases,
    memory,
    pages,
    path,
    redis_async,
    redis_sync,
    regions,
    replay,
    report,
    rules,
    service,
    shards,
    slots,
    usage,
    web,
)
from benchmarks.plan import FULL, QUICK, Plan
from tests.servers import Server, binaries

SECTIONS = (
    "memory",
    "redis",
    "async",
    "footprint",
    "rules",
    "path",
    "replay",
    "web",
    "service",
    "leases",
    "cluster",
    "shards",
    "regions",
    "usage",
    "slots",
    "console",
)
SLOW = ("web", "service", "shards", "console")  # not part of a quick run, unless they are named
ALONE = {  # sections that need neither a Redis server nor a load generator
    "memory": memory.run,
    "footprint": footprint.run,
    "rules": rules.run,
    "path": path.run,
    "replay": replay.run,
    "shards": shards.run,
    "cluster": cluster.run,
    "regions": regions.run,
    "usage": usage.run,
    "console": pages.run,
}
RESULTS = Path(__file__).parent / "results" / "latest.json"


def main() -> None:
    arguments = parse()
    plan = QUICK if arguments.quick else FULL
    chosen = arguments.only or [name for name in SECTIONS if name not in SLOW or not arguments.quick]
    console = Console(width=None if Console().is_terminal else 120)
    binary = redis_binary() if {"redis", "async", "web", "service", "leases", "slots"} & set(chosen) else None
    wrk = web.find_wrk() if "web" in chosen else None
    h2load = service.find_h2load() if "service" in chosen else None
    facts = report.environment(binary) | {
        "quick": arguments.quick,
        "wrk": wrk and web.wrk_version(wrk),
        "h2load": h2load and service.h2load_version(h2load),
    }
    introduce(facts, console)
    settle()
    start = monotonic()
    sections = []
    for name in SECTIONS:
        if name in chosen:
            begun = monotonic()
            section = run(name, plan, binary, wrk if name == "web" else h2load)
            section.seconds = round(monotonic() - begun, 1)
            report.show(section, console)
            sections.append(section)
            facts["seconds"] = round(monotonic() - start, 1)
            report.write_json(arguments.json, facts, sections)  # a run that is interrupted leaves what it has
    report.summary(sections, console)
    console.print(f"{facts['seconds']} seconds; figures in {arguments.json}", highlight=False)


def settle() -> None:
    """Have every library imported, and then left alone by the garbage collector: all that it meets is the work."""
    for algorithm in contenders.ALGORITHMS:
        for peer in contenders.peers_for(algorithm):
            peer.memory(algorithm, 1).close()
    gc.collect()
    gc.freeze()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: some two minutes")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="default: %(default)s")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SECTIONS,
        metavar="NAME",
        help=f"{', '.join(SECTIONS)}; quick: all but {' and '.join(SLOW)}",
    )
    return parser.parse_args()


def run(name: str, plan: Plan, binary: Path | None, loader: Path | None) -> report.Section:
    if name in ALONE:
        return ALONE[name](plan)
    assert binary is not None
    with Server(binary) as server:
        if name in SLOW:
            assert loader is not None
            return web.run(plan, server, loader) if name == "web" else service.run(plan, server, loader)
        if name == "leases":
            return leases.run(plan, server)
        if name == "slots":
            return slots.run(plan, server)
        return redis_sync.run(plan, server) if name == "redis" else redis_async.run(plan, server)


def redis_binary() -> Path:
    """Redis where there is one, else whatever the tests would use."""
    found = binaries()
    return found.get("redis") or next(iter(found.values()))


def introduce(facts: dict[str, object], console: Console) -> None:
    packages = facts["packages"]
    assert isinstance(packages, dict)
    listed = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    server = f"; {facts['redis-server']}" if facts["redis-server"] else ""
    console.print(f"Python {facts['python']}, {facts['cpus']} CPUs{server}; {listed}", highlight=False)
    for package in [*contenders.missing(), *web.missing()]:
        console.print(
            f"{package} is not installed, so it is left out; pip install '{package}'",
            style="yellow",
            highlight=False,
        )
    console.print()


if __name__ == "__main__":
    main()
