"""The meter's counts and the services' states as Prometheus metric families."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from headgate._version import __version__
from headgate.features.leases.status import LeaseStatus
from headgate.limiter.slot_records import SlotStatus
from headgate.regions import RegionStatus
from headgate.rules.holder import Holder
from headgate.telemetry.meter import Histogram, Meter

if TYPE_CHECKING:
    from headgate.audit.auditor import AuditStatus
    from headgate.audit.webhook import WebhookStatus
    from headgate.rules.sources.database import DatabaseStatus
    from headgate.rules.sources.file import FileStatus

STATES: Final = {"closed": 0, "half_open": 1, "open": 2}  # of circuit breakers

Samples = Iterable[tuple[tuple[str, ...] | str, float]]  # by the values of the labels; of a single label, a string


def _counter(name: str, text: str, value: float | Samples, *labels: str) -> Metric:
    return _family(CounterMetricFamily, name, text, value, labels)


def _gauge(name: str, text: str, value: float | Samples, *labels: str) -> Metric:
    return _family(GaugeMetricFamily, name, text, value, labels)


def _family(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    value: float | Samples,
    labels: tuple[str, ...],
) -> Metric:
    """Return a family with one sample, or with a sample for each value of its labels."""
    family = kind(name, text, labels=labels)
    for values, figure in [((), value)] if isinstance(value, int | float) else value:
        family.add_metric((values,) if isinstance(values, str) else values, figure)
    return family


def _histogram(name: str, text: str, histograms: Histogram | Mapping[str, Histogram]) -> Metric:
    """Return a family of one histogram, or of several by protocol."""
    names: tuple[str, ...]
    found: dict[tuple[str, ...], Histogram]
    if isinstance(histograms, Histogram):
        names, found = (), {(): histograms}
    else:
        names, found = ("protocol",), {(protocol,): one for protocol, one in histograms.items()}
    family = HistogramMetricFamily(name, text, labels=names)
    for labels, histogram in found.items():
        buckets, total = histogram.read()
        bounds = [(floatToGoString(bound), count) for bound, count in buckets]  # type: ignore[no-untyped-call]
        family.add_metric(labels, bounds, total)
    return family


def build_info() -> Iterator[Metric]:
    text = "Always 1, with the version of Headgate and the machine as labels."
    build = (__version__, platform.python_version(), platform.node())
    yield _gauge("headgate_build_info", text, [(build, 1)], "version", "python", "node")


def meter_families(meter: Meter) -> Iterator[Metric]:
    text = "Decided requests, by the deciding rule, the decision and the reason."
    tallies = ((tuple(labels), count) for *labels, count in sorted(meter.tallies()))
    yield _counter("headgate_checks", text, tallies, "rule", "decision", "reason")
    text = "Requests within their limit that used 80 % or more of it, by the rule that decided them."
    yield _counter("headgate_near_limit", text, sorted(meter.near_limit()), "rule")
    yield _histogram("headgate_request_seconds", "How long calls to the data plane took to answer.", meter.requests)
    yield _histogram("headgate_checks_per_request", "How many checks a call to the data plane held.", meter.checks)
    responses = [((protocol, str(status)), count) for (protocol, status), count in meter.responses.copy().items()]
    text = "Requests that were answered, by protocol and status."
    yield _counter("headgate_responses", text, sorted(responses), "protocol", "status")
    connections = sorted(meter.connections.items())
    open_now = [(protocol, one.now()) for protocol, one in connections]
    max_open = [(protocol, one.max_open) for protocol, one in connections]
    yield _gauge("headgate_connections", "Connections that are open.", open_now, "protocol")
    yield _gauge("headgate_connections_max", "Connections that may be open.", max_open, "protocol")
    text = "How late the event loop is, sampled ten times a second."
    yield _histogram("headgate_event_loop_lag_seconds", text, meter.loop_lags)
    yield _histogram("headgate_store_call_seconds", "How long calls to the store's server took.", meter.store_calls)
    text = "How many requests one call to the store's server decided."
    yield _histogram("headgate_store_batch_size", text, meter.store_batches)
    yield _counter("headgate_store_errors", "Calls to the store that failed.", meter.store_errors.items(), "kind")
    text = "The circuit breaker of each of the store's servers: 0 closed, 1 half-open, 2 open."
    breakers = [(node, STATES[state]) for node, state in sorted(meter.breakers.copy().items())]
    yield _gauge("headgate_breaker_state", text, breakers, "node")
    text = "Checks by callers whose clock is over 5 seconds off the store's."
    yield _counter("headgate_clock_skew", text, meter.skewed_total)
    yield _histogram("headgate_clock_skew_seconds", "How far callers' clocks are off the store's.", meter.skews)


def snapshot_families(holder: Holder, now: Callable[[], float]) -> Iterator[Metric]:
    snapshot = holder.current
    text = "The version of the rules in force: the database's, or a number that stands for a file's content."
    yield _gauge("headgate_snapshot_version", text, version_number(snapshot.version))
    age = max(0.0, now() - holder.since)
    yield _gauge("headgate_snapshot_age_seconds", "How long these rules have been in force.", age)
    in_force = sum(rule.enabled for rule in snapshot.rules) if snapshot.enabled else 0
    yield _gauge("headgate_rules", "How many rules are in force.", in_force)


def version_number(version: str) -> int:
    """Return a version as a number that is equal on all nodes with the same rules."""
    if version.isascii() and version.isdigit():
        return int(version)
    return crc32(version.partition("-")[2].encode() or version.encode())  # for a file, ignore the number of the load


def _failing(failing: bool) -> Iterator[Metric]:
    yield _gauge("headgate_store_failing", "1 while the store fails, and failure modes decide.", failing)


def _denial_cache(hits: int) -> Iterator[Metric]:
    yield _counter("headgate_exhausted_hits", "Refusals from the denial cache, without a call to the store.", hits)


def _rules(status: FileStatus | DatabaseStatus) -> Iterator[Metric]:
    yield _counter("headgate_rules_loads", "How often rules were read and put in force.", status.loads)
    text = "How often rules were invalid, and the last good ones stayed."
    yield _counter("headgate_rules_rejected", text, status.rejected)
    text = "1 while the rules in force are older than the last ones, which were rejected."
    yield _gauge("headgate_rules_stale", text, status.stale)


def _database(status: DatabaseStatus) -> Iterator[Metric]:
    yield _gauge("headgate_database_failing", "1 while the rules' database fails.", status.failing)
    yield _counter("headgate_database_failures", "Failed queries to the rules' database.", status.failures)
    users = status.users
    yield _gauge("headgate_users_cached", "Users whose tier and overrides are in memory.", users.cached)
    yield _counter("headgate_users_cache_hits", "Checks whose user was in memory.", users.hits)
    yield _counter("headgate_users_cache_misses", "Checks whose user had to be looked up.", users.misses)
    yield _counter("headgate_users_lookups", "Users that were looked up in the database.", users.looked_up)
    yield _counter("headgate_users_queries", "Queries that looked up users, several at a time.", users.queries)
    yield _counter("headgate_users_failures", "Queries for users that failed.", users.failures)
    text = "Checks decided without a fresh look-up of their user: by the default tier, or by what was known last."
    yield _counter("headgate_users_unanswered", text, users.unanswered)


def _audit(status: AuditStatus) -> Iterator[Metric]:
    yield _gauge("headgate_audit_backlog", "Events that wait to be written, also in the spool.", status.backlog)
    yield _gauge("headgate_audit_spool_bytes", "The size of the spool on disk.", status.spool_bytes)
    yield _counter("headgate_audit_recorded", "Events recorded.", status.recorded)
    yield _counter("headgate_audit_spooled", "Events that went to the spool on disk.", status.spooled)
    yield _counter("headgate_audit_written", "Events that were written to the database.", status.written)
    yield _counter("headgate_audit_dropped", "Events that were lost: the spool was full or broken.", status.dropped)
    yield _counter("headgate_audit_failed", "Events that could not be recorded because of a bug.", status.failed)
    yield _counter("headgate_audit_deleted", "Old events that were deleted.", status.deleted)


def _webhook(status: WebhookStatus) -> Iterator[Metric]:
    outcomes = [(name, getattr(status, name)) for name in ("delivered", "failed", "dropped")]
    yield _counter("headgate_webhook_messages", "Messages to the webhook, by outcome.", outcomes, "outcome")
    yield _counter("headgate_webhook_retries", "Attempts to deliver a message again.", status.retries)
    yield _gauge("headgate_webhook_queued", "Messages that wait to be delivered.", status.queued)


def _leases(status: LeaseStatus) -> Iterator[Metric]:
    yield _counter("headgate_lease_checks", "Requests to which leased rules applied.", status.checks)
    text = "Requests to which leased rules applied that were decided without calling the store."
    yield _counter("headgate_lease_hits", text, status.hits)
    yield _counter("headgate_lease_store_calls", "Calls to the store on behalf of leased rules.", status.calls)
    yield _counter("headgate_lease_fetches", "Slices requested from the store.", status.fetches)
    yield _counter("headgate_lease_tokens_fetched", "Tokens received from the store.", status.fetched)
    yield _counter("headgate_lease_tokens_returned", "Unused tokens that were returned to the store.", status.returned)
    yield _counter("headgate_lease_tokens_stranded", "Tokens that were neither used nor returned.", status.stranded)
    yield _gauge("headgate_lease_tokens_outstanding", "Tokens held now.", status.outstanding)
    yield _gauge("headgate_lease_keys", "Keys of leased rules that are remembered.", status.keys)


def _slots(status: SlotStatus) -> Iterator[Metric]:
    for name, text in (
        ("acquired", "Slots that this node has taken."),
        ("released", "Slots that were released through this node."),
        ("expired", "Slots of this node that were neither released nor renewed in time through this node."),
    ):
        yield _counter(f"headgate_slots_{name}", text, sorted(getattr(status, name).items()), "rule")
    yield _gauge("headgate_slots_in_use", "Slots that this node holds.", sorted(status.in_use.items()), "rule")
    text = "How long the oldest slot has been held."
    yield _gauge("headgate_slots_longest_held_seconds", text, sorted(status.longest_held.items()), "rule")


def _regions(status: RegionStatus) -> Iterator[Metric]:
    calls, failures, cut = (
        [(name, getattr(peer, figure)) for name, peer in status.peers.items()]
        for figure in ("calls", "failures", "cut")
    )
    ages = [(name, peer.age) for name, peer in status.peers.items() if peer.age is not None]
    yield _counter("headgate_region_calls", "Calls to other regions that were answered.", calls, "region")
    yield _counter("headgate_region_failures", "Calls to other regions that failed.", failures, "region")
    text = "1 while another region has not answered for several intervals."
    yield _gauge("headgate_region_cut", text, cut, "region")
    text = "Seconds since another region's counts were last received."
    yield _gauge("headgate_region_age_seconds", text, ages, "region")
    text = "Requests partly decided by failure modes because the central region could not be reached."
    yield _counter("headgate_region_fallbacks", text, status.fallbacks)
    yield _gauge("headgate_region_grants", "Keys of which this region has a share that follows demand.", status.grants)
    text = "How often such shares could not be agreed on."
    yield _counter("headgate_region_grant_failures", text, status.grant_failures)
    yield _gauge("headgate_region_synced_keys", "Keys whose counts are exchanged.", status.synced_keys)
    text = "The most that other regions allowed of one key between two exchanges: limits may be exceeded by this much."
    yield _gauge("headgate_region_synced_bound", text, status.synced_bound)
    text = "Units that all regions together allowed above synced limits."
    yield _counter("headgate_region_synced_excess", text, status.synced_excess)


def _rejections(counts: Mapping[str, int]) -> Iterator[Metric]:
    yield _counter("headgate_identity_rejections", "Rejected credentials.", sorted(counts.items()), "reason")


def _auth_failures(counts: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    text = "Calls to the service with a rejected token, by protocol and reason."
    yield _counter("headgate_auth_failures", text, sorted(counts.items()), "protocol", "reason")


def _token_expiry(seconds: Mapping[str, float]) -> Iterator[Metric]:
    text = "Seconds until a token expires, of those that expire first."
    yield _gauge("headgate_token_expiry_seconds", text, sorted(seconds.items()), "token")


# The families of each status of `Metrics`, by its name there.
STATUS_FAMILIES: Final[Mapping[str, Callable[[Any], Iterator[Metric]]]] = {
    "failing": _failing,  # whether the store is failing now
    "exhausted": _denial_cache,  # the hits of the store's denial cache
    "rules": _rules,  # the state of the rules' source
    "database": _database,  # … if it is a database
    "audit": _audit,
    "webhook": _webhook,
    "leases": _leases,
    "slots": _slots,
    "regions": _regions,
    "rejections": _rejections,  # rejected credentials of clients, by reason
    "auth_failures": _auth_failures,  # … of the service's callers, by protocol and reason
    "token_expiry": _token_expiry,  # the seconds until tokens expire, by name
}
