"""`/metrics`: the meter's counts and the service's state, for Prometheus. Needs prometheus-client.

No label identifies a client: no user, address or key. The number of label values is bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client import generate_latest as generate_text
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from headgate.rules.holder import Holder
from headgate.telemetry.meter import Meter
from headgate.telemetry.metric_families import STATUS_FAMILIES, build_info, meter_families, snapshot_families

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

log = logging.getLogger("headgate")


class Metrics:
    """The metrics of one worker.

    `statuses` return the state of its parts: see `STATUS_FAMILIES` for their names. The page omits what is None.
    """

    def __init__(
        self,
        meter: Meter,
        *,
        holder: Holder,
        now: Callable[[], float] = monotonic,
        **statuses: Callable[[], Any] | None,
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Figures(build_info))
        self._registry.register(_Figures(lambda: meter_families(meter)))
        self._registry.register(_Figures(lambda: snapshot_families(holder, now)))
        for name, status in statuses.items():
            if status is not None:
                self._registry.register(_Figures(STATUS_FAMILIES[name], status))
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
