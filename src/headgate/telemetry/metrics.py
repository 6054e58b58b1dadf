"""`/metrics`: the meter's counts and the service's state, for Prometheus. Needs prometheus-client.

No label identifies a client: no user, address or key. The number of label values is bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client import generate_latest as generate_text
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from headgate.features.leases.status import LeaseStatus
from headgate.features.regions.protocol import RegionStatus
from headgate.limiter.slot_records import SlotStatus
from headgate.rules.holder import Holder
from headgate.telemetry.meter import Meter
from headgate.telemetry.metric_families import (
    audit_families,
    auth_failure_families,
    build_info,
    database_families,
    denial_cache_families,
    failing_families,
    lease_families,
    meter_families,
    region_families,
    rejection_families,
    rules_families,
    slot_families,
    snapshot_families,
    token_expiry_families,
    webhook_families,
)

if TYPE_CHECKING:
    from headgate.audit.auditor import AuditStatus
    from headgate.audit.webhook import WebhookStatus
    from headgate.rules.sources.database import DatabaseStatus
    from headgate.rules.sources.file import FileStatus

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

log = logging.getLogger("headgate")


class Metrics:
    """The metrics of one worker.

    `failing` returns whether the store is failing now, and `exhausted` the hits of its denial cache. `rules` and
    `database` return the state of the rules' source, the second only if that is a database. `audit` returns the audit
    log's state, `webhook` the webhook's; `leases`, `slots` and `regions` the limiter's. `rejections` returns how many
    credentials of the middleware's clients were rejected, by reason, and `auth_failures` how many of the service's
    callers, by protocol and reason. `token_expiry` returns the seconds until tokens expire, by name. The page omits
    what is None.
    """

    def __init__(
        self,
        meter: Meter,
        *,
        holder: Holder,
        failing: Callable[[], bool] | None = None,
        exhausted: Callable[[], int] | None = None,
        rules: Callable[[], FileStatus | DatabaseStatus] | None = None,
        database: Callable[[], DatabaseStatus] | None = None,
        audit: Callable[[], AuditStatus] | None = None,
        webhook: Callable[[], WebhookStatus] | None = None,
        leases: Callable[[], LeaseStatus] | None = None,
        slots: Callable[[], SlotStatus] | None = None,
        regions: Callable[[], RegionStatus] | None = None,
        rejections: Callable[[], Mapping[str, int]] | None = None,
        auth_failures: Callable[[], Mapping[tuple[str, str], int]] | None = None,
        token_expiry: Callable[[], Mapping[str, float]] | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Figures(build_info))
        self._registry.register(_Figures(lambda: meter_families(meter)))
        self._registry.register(_Figures(lambda: snapshot_families(holder, now)))
        if_given: tuple[tuple[Callable[[], Any] | None, Callable[[Any], Iterator[Metric]]], ...] = (
            (failing, failing_families),
            (exhausted, denial_cache_families),
            (rules, rules_families),
            (database, database_families),
            (audit, audit_families),
            (webhook, webhook_families),
            (leases, lease_families),
            (slots, slot_families),
            (regions, region_families),
            (rejections, rejection_families),
            (auth_failures, auth_failure_families),
            (token_expiry, token_expiry_families),
        )
        for status, families in if_given:
            if status is not None:
                self._registry.register(_Figures(families, status))
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type: OpenMetrics if the header `accept` asks for it, else text.

        Call it from any thread. With a thousand rules it takes some ten milliseconds, so do not call it on the event
        loop.
        """
        if "application/openmetrics-text" in accept.lower():
            return openmetrics.generate_latest(self._registry), OPENMETRICS  # type: ignore[no-untyped-call]
        return generate_text(self._registry), TEXT


class _Figures(Collector):
    """Collects `families` of a `status`. If that fails, only its own metrics are missing from the page."""

    def __init__(self, families: Callable[..., Iterable[Metric]], *status: Callable[[], Any]) -> None:
        self._families = families
        self._status = status

    def collect(self) -> Iterable[Metric]:
        try:
            return list(self._families(*[read() for read in self._status]))
        except Exception:  # if one source fails, operators still need the others
            log.exception("metrics: some metrics could not be collected")
            return []
