"""The metrics of a service that has everything that metrics are about, and to which a bit has happened."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate import AsyncLimiter, Decision, Quota, Rule
from headgate.audit.auditor import AuditStatus
from headgate.audit.webhook import WebhookStatus
from headgate.errors import StoreTimeout
from headgate.features.leases.status import LeaseStatus
from headgate.regions import PeerStatus, RegionStatus
from headgate.rules.sources.database import DatabaseSource
from headgate.telemetry.meter import Meter, OpenConnections
from headgate.telemetry.metrics import Metrics

AUDIT = AuditStatus(
    recorded=10,
    spooled=7,
    written=5,
    dropped=2,
    backlog=3,
    failed=0,
    deleted=0,
    spool_bytes=1_024,
    error=None,
)


@contextmanager
def service_metrics(directory: Path) -> Iterator[Metrics]:
    source = DatabaseSource(f"sqlite:///{directory}/rules.db")
    try:
        with source.changes().begin("tester") as changes:
            changes.create_rule(Rule(id="search", quota=Quota.parse("2/minute")))
        meter = Meter(holder=source.holder)
        for decision in asyncio.run(_decisions(source)):
            meter.record_decision(decision)
        meter.called(0.001, 2)
        meter.failed(StoreTimeout("late"), 0.05, 1)
        meter.breaker("127.0.0.1:6379", "half_open")
        meter.record_call("http", 0.0004)
        meter.record_skew(7)
        meter.record_response("http", 200)
        meter.loop_lags.add(0.002)
        meter.connections["http"] = OpenConnections(lambda: 3, 20_000)
        yield Metrics(
            meter,
            holder=source.holder,
            failing=lambda: False,
            exhausted=lambda: 3,
            rules=source.status,
            database=source.status,
            audit=lambda: AUDIT,
            webhook=lambda: WebhookStatus(delivered=4, failed=1, dropped=0, retries=2, queued=3),
            leases=lambda: LeaseStatus(checks=100, hits=98, calls=3, fetched=200, stranded=7, outstanding=90, keys=2),
            regions=lambda: RegionStatus("eu", {"us": PeerStatus(5, 1, 0.4, cut=False)}, synced_bound=3),
            rejections=lambda: {"token_expired": 1},
            auth_failures=lambda: {("envoy", "expired"): 1},
            token_expiry=lambda: {"ci": 1_000_000.0},
        )
    finally:
        source.close()


async def _decisions(source: DatabaseSource) -> list[Decision]:
    async with AsyncLimiter(source) as limiter:
        return [await limiter.check(user="alice") for _ in range(3)]
