"""What Sentinels say about a master, and which server to believe in. Pure; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from headgate.errors import StoreUnavailable
from headgate.stores.redis.faults import Address

# Messages after which the master may be another: a replica was chosen, told to become the master, seen to be one,
# and announced. From the second on, the old master's writes are lost, though it goes on accepting them.
CHANNELS: Final = ("+selected-slave", "+failover-state-wait-promotion", "+promoted-slave", "+switch-master")
# Sentinels tell one another of a failover every two seconds. One that has not heard of it yet is not believed.
SETTLE_SECONDS: Final = 6.0


class NoMaster(StoreUnavailable):
    """None of the servers that the Sentinels name is a master. Servers that are not `named` must not be used."""

    def __init__(self, message: str, named: Sequence[Address]) -> None:
        super().__init__(message, sent=False)
        self.named = tuple(named)


class SentinelReport(NamedTuple):
    """What one Sentinel says about a service."""

    epoch: int  # of the last failover that it knows about
    master: Address
    promoted: Address | None = None  # the replica that takes over, while a failover is under way


class Candidates:
    """Names the servers that may be the master, by what all Sentinels say.

    The latest epoch counts: a Sentinel that missed a failover names a server that was replaced. Within that, a replica
    that is being promoted comes first, because its Sentinel goes on naming the old master for up to a second.
    """

    def __init__(self) -> None:
        self._epoch = 0  # the latest that was reported
        self._heard_at = float("-inf")  # when it was reported last

    def rank(self, reports: Sequence[SentinelReport], now: float) -> list[Address]:
        """Return the candidates, the best first; none if all reports are older than one a few seconds ago."""
        epoch = max(report.epoch for report in reports)
        if epoch < self._epoch and now < self._heard_at + SETTLE_SECONDS:
            return []
        self._epoch, self._heard_at = epoch, now
        latest = [report for report in reports if report.epoch == epoch]
        promoted = [report.promoted for report in latest if report.promoted is not None]
        return list(dict.fromkeys([*promoted, *(report.master for report in latest)]))


def read_report(master: Any, replicas: Sequence[Any]) -> SentinelReport:
    """Read the replies to `SENTINEL MASTER` and `SENTINEL REPLICAS`. Raises `LookupError` or `ValueError`."""
    fields = _fields(master)
    promoted = [known for known in map(_fields, replicas) if "promoted" in known["flags"].split(",")]
    return SentinelReport(int(fields["config-epoch"]), _address(fields), _address(promoted[0]) if promoted else None)


def is_about(message: Sequence[Any], service: str) -> bool:
    """Return whether a message of one of `CHANNELS` is about this service."""
    kind, *_, text = message
    return bool(kind == b"message" and service in text.decode().split(" "))


def _fields(reply: Any) -> dict[str, str]:
    """A map of RESP3, or the same as a flat list."""
    pairs = reply.items() if isinstance(reply, Mapping) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): value.decode() for name, value in pairs}


def _address(fields: dict[str, str]) -> Address:
    return fields["ip"], int(fields["port"])
