"""The meter's counts and the services' states as Prometheus metric families."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final
from zlib import crc32

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from headgate._version import __version__
from headgate.features.leases.status import LeaseStatus
from headgate.features.regions.protocol import RegionStatus
from headgate.limiter.slot_records import SlotStatus
from headgate.rules.holder import Holder
from headgate.telemetry.histogram import Histogram
from headgate.telemetry.meter import Meter

if TYPE_CHECKING:
    from headgate.audit.auditor import AuditStatus
    from headgate.audit.webhook import WebhookStatus
    from headgate.rules.sources.database import DatabaseStatus
    from headgate.rules.sources.file import FileStatus

STATES: Final = {"closed": 0, "half_open": 1, "open": 2}  # of circuit breakers


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _labelled(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    labels: tuple[str, ...],
    samples: Iterable[tuple[tuple[str, ...] | str, float]],
) -> Metric:
    """Return a family with a sample for each value of its labels; the value of a single label may be a string."""
    family = kind(name, text, labels=labels)
    for values, figure in samples:
        family.add_metric((values,) if isinstance(values, str) else values, figure)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, text, labels=())
    _add(family, (), histogram)
    return family


def _by_protocol(name: str, text: str, histograms: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=("protocol",))
    for protocol, histogram in histograms.items():
        _add(family, (protocol,), histogram)
    return family


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram) -> None:
    buckets, total = histogram.read()
    family.add_metric(labels, [(_bound(bound), count) for bound, count in buckets], total)


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(float(bound))


def build_info() -> Iterator[Metric]:
    text = "Always 1, with the version of Headgate and the machine as labels."
    build = (__version__, platform.python_version(), platform.node())
    yield _labelled(GaugeMetricFamily, "headgate_build_info", text, ("version", "python", "node"), [(build, 1)])


def meter_families(meter: Meter) -> Iterator[Metric]:
    yield _labelled(
        CounterMetricFamily,
        "headgate_checks",
        "Decided requests, by the deciding rule, the decision and the reason.",
        ("rule", "decision", "reason"),
        ((tuple(labels), count) for *labels, count in sorted(meter.tallies())),
    )
    text = "Requests within their limit that used 80 % or more of it, by the rule that decided them."
    yield _labelled(CounterMetricFamily, "headgate_near_limit", text, ("rule",), sorted(meter.near_limit()))
    yield _by_protocol("headgate_request_seconds", "How long calls to the data plane took to answer.", meter.requests)
    yield _by_protocol("headgate_checks_per_request", "How many checks a call to the data plane held.", meter.checks)
    responses = sorted(meter.responses.copy().items(), key=str)
    yield _labelled(
        CounterMetricFamily,
        "headgate_responses",
        "Requests that were answered, by protocol and status.",
        ("protocol", "status"),
        (((protocol, str(status)), count) for (protocol, status), count in responses),
    )
    label, connections = ("protocol",), sorted(meter.connections.items())
    open_now = [(protocol, one.now()) for protocol, one in connections]
    max_open = [(protocol, one.max_open) for protocol, one in connections]
    yield _labelled(GaugeMetricFamily, "headgate_connections", "Connections that are open.", label, open_now)
    yield _labelled(GaugeMetricFamily, "headgate_connections_max", "Connections that may be open.", label, max_open)
    yield _histogram(
        "headgate_event_loop_lag_seconds", "How late the event loop is, sampled ten times a second.", meter.loop_lags
    )
    yield _histogram("headgate_store_call_seconds", "How long calls to the store's server took.", meter.store_calls)
    yield _histogram(
        "headgate_store_batch_size", "How many requests one call to the store's server decided.", meter.store_batches
    )
    errors = meter.store_errors.items()
    yield _labelled(CounterMetricFamily, "headgate_store_errors", "Calls to the store that failed.", ("kind",), errors)
    text = "The circuit breaker of each of the store's servers: 0 closed, 1 half-open, 2 open."
    breakers = [(node, STATES[state]) for node, state in sorted(meter.breakers.copy().items())]
    yield _labelled(GaugeMetricFamily, "headgate_breaker_state", text, ("node",), breakers)
    yield _counter(
        "headgate_clock_skew", "Checks by callers whose clock is over 5 seconds off the store's.", meter.skewed_total
    )
    yield _histogram("headgate_clock_skew_seconds", "How far callers' clocks are off the store's.", meter.skews)


def snapshot_families(holder: Holder, now: Callable[[], float]) -> Iterator[Metric]:
    snapshot = holder.current
    yield _gauge(
        "headgate_snapshot_version",
        "The version of the rules in force: the database's, or a number that stands for a file's content.",
        version_number(snapshot.version),
    )
    yield _gauge(
        "headgate_snapshot_age_seconds", "How long these rules have been in force.", max(0.0, now() - holder.since)
    )
    in_force = sum(rule.enabled for rule in snapshot.rules) if snapshot.enabled else 0
    yield _gauge("headgate_rules", "How many rules are in force.", in_force)


def version_number(version: str) -> int:
    """Return a version as a number that is equal on all nodes with the same rules."""
    if version.isascii() and version.isdigit():
        return int(version)
    return crc32(version.partition("-")[2].encode() or version.encode())  # for a file, ignore the number of the load


def failing_families(failing: bool) -> Iterator[Metric]:
    yield _gauge("headgate_store_failing", "1 while the store fails, and failure modes decide.", failing)


def denial_cache_families(hits: int) -> Iterator[Metric]:
    yield _counter("headgate_exhausted_hits", "Refusals from the denial cache, without a call to the store.", hits)


def rules_families(status: FileStatus | DatabaseStatus) -> Iterator[Metric]:
    yield _counter("headgate_rules_loads", "How often rules were read and put in force.", status.loads)
    yield _counter(
        "headgate_rules_rejected", "How often rules were invalid, and the last good ones stayed.", status.rejected
    )

    yield _gauge(
        "headgate_rules_stale",
        "1 while the rules in force are older than the last ones, which were rejected.",
        status.stale,
    )


def database_families(status: DatabaseStatus) -> Iterator[Metric]:
    yield _gauge("headgate_database_failing", "1 while the rules' database fails.", status.failing)
    yield _counter("headgate_database_failures", "Failed queries to the rules' database.", status.failures)
    users = status.users
    yield _gauge("headgate_users_cached", "Users whose tier and overrides are in memory.", users.cached)
    yield _counter("headgate_users_cache_hits", "Checks whose user was in memory.", users.hits)
    yield _counter("headgate_users_cache_misses", "Checks whose user had to be looked up.", users.misses)
    yield _counter("headgate_users_lookups", "Users that were looked up in the database.", users.looked_up)
    yield _counter("headgate_users_queries", "Queries that looked up users, several at a time.", users.queries)
    yield _counter("headgate_users_failures", "Queries for users that failed.", users.failures)
    yield _counter(
        "headgate_users_unanswered",
        "Checks decided without a fresh look-up of their user: by the default tier, or by what was known last.",
        users.unanswered,
    )


def audit_families(status: AuditStatus) -> Iterator[Metric]:
    yield _gauge("headgate_audit_backlog", "Events that wait to be written, also in the spool.", status.backlog)
    yield _gauge("headgate_audit_spool_bytes", "The size of the spool on disk.", status.spool_bytes)
    yield _counter("headgate_audit_recorded", "Events recorded.", status.recorded)
    yield _counter("headgate_audit_spooled", "Events that went to the spool on disk.", status.spooled)
    yield _counter("headgate_audit_written", "Events that were written to the database.", status.written)
    yield _counter("headgate_audit_dropped", "Events that were lost: the spool was full or broken.", status.dropped)
    yield _counter("headgate_audit_failed", "Events that could not be recorded because of a bug.", status.failed)
    yield _counter("headgate_audit_deleted", "Old events that were deleted.", status.deleted)


def slot_families(status: SlotStatus) -> Iterator[Metric]:
    expired = "Slots of this node that were neither released nor renewed in time through this node."
    held = "How long the oldest slot has been held."
    families: tuple[tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, Mapping[str, float]], ...] = (
        (CounterMetricFamily, "acquired", "Slots that this node has taken.", status.acquired),
        (CounterMetricFamily, "released", "Slots that were released through this node.", status.released),
        (CounterMetricFamily, "expired", expired, status.expired),
        (GaugeMetricFamily, "in_use", "Slots that this node holds.", status.in_use),
        (GaugeMetricFamily, "longest_held_seconds", held, status.longest_held),
    )
    for kind, name, text, by_rule in families:
        yield _labelled(kind, f"headgate_slots_{name}", text, ("rule",), sorted(by_rule.items()))


def webhook_families(status: WebhookStatus) -> Iterator[Metric]:
    text = "Messages to the webhook, by outcome."
    outcomes = [(name, getattr(status, name)) for name in ("delivered", "failed", "dropped")]
    yield _labelled(CounterMetricFamily, "headgate_webhook_messages", text, ("outcome",), outcomes)
    yield _counter("headgate_webhook_retries", "Attempts to deliver a message again.", status.retries)
    yield _gauge("headgate_webhook_queued", "Messages that wait to be delivered.", status.queued)


def lease_families(status: LeaseStatus) -> Iterator[Metric]:
    yield _counter("headgate_lease_checks", "Requests to which leased rules applied.", status.checks)
    yield _counter(
        "headgate_lease_hits",
        "Requests to which leased rules applied that were decided without calling the store.",
        status.hits,
    )
    yield _counter("headgate_lease_store_calls", "Calls to the store on behalf of leased rules.", status.calls)
    yield _counter("headgate_lease_fetches", "Slices requested from the store.", status.fetches)
    yield _counter("headgate_lease_tokens_fetched", "Tokens received from the store.", status.fetched)
    yield _counter("headgate_lease_tokens_returned", "Unused tokens that were returned to the store.", status.returned)
    yield _counter("headgate_lease_tokens_stranded", "Tokens that were neither used nor returned.", status.stranded)
    yield _gauge("headgate_lease_tokens_outstanding", "Tokens held now.", status.outstanding)
    yield _gauge("headgate_lease_keys", "Keys of leased rules that are remembered.", status.keys)


def region_families(status: RegionStatus) -> Iterator[Metric]:
    peers, label = status.peers.items(), ("region",)
    calls = [(name, peer.calls) for name, peer in peers]
    failures = [(name, peer.failures) for name, peer in peers]
    cut = [(name, peer.cut) for name, peer in peers]
    ages = [(name, peer.age) for name, peer in peers if peer.age is not None]
    text = "Calls to other regions that were answered."
    yield _labelled(CounterMetricFamily, "headgate_region_calls", text, label, calls)
    text = "Calls to other regions that failed."
    yield _labelled(CounterMetricFamily, "headgate_region_failures", text, label, failures)
    text = "1 while another region has not answered for several intervals."
    yield _labelled(GaugeMetricFamily, "headgate_region_cut", text, label, cut)
    text = "Seconds since another region's counts were last received."
    yield _labelled(GaugeMetricFamily, "headgate_region_age_seconds", text, label, ages)
    yield _counter(
        "headgate_region_fallbacks",
        "Requests partly decided by failure modes because the central region could not be reached.",
        status.fallbacks,
    )
    yield _gauge("headgate_region_grants", "Keys of which this region has a share that follows demand.", status.grants)
    yield _counter(
        "headgate_region_grant_failures", "How often such shares could not be agreed on.", status.grant_failures
    )
    yield _gauge("headgate_region_synced_keys", "Keys whose counts are exchanged.", status.synced_keys)
    yield _gauge(
        "headgate_region_synced_bound",
        "The most that other regions allowed of one key between two exchanges: limits may be exceeded by this much.",
        status.synced_bound,
    )
    yield _counter(
        "headgate_region_synced_excess",
        "Units that all regions together allowed above synced limits.",
        status.synced_excess,
    )


def rejection_families(counts: Mapping[str, int]) -> Iterator[Metric]:
    name, text = "headgate_identity_rejections", "Rejected credentials."
    yield _labelled(CounterMetricFamily, name, text, ("reason",), sorted(counts.items()))


def auth_failure_families(counts: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    text = "Calls to the service with a rejected token, by protocol and reason."
    yield _labelled(CounterMetricFamily, "headgate_auth_failures", text, ("protocol", "reason"), sorted(counts.items()))


def token_expiry_families(seconds: Mapping[str, float]) -> Iterator[Metric]:
    text = "Seconds until a token expires, of those that expire first."
    yield _labelled(GaugeMetricFamily, "headgate_token_expiry_seconds", text, ("token",), sorted(seconds.items()))
