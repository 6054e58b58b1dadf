"""Reports of Sentinels about a master, and the choice of the server to trust. Pure; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from headgate.errors import StoreUnavailable
from headgate.stores.redis.faults import Address

# Messages after which the master may change: a replica was chosen, told to become the master, seen to be one, and
# announced. From the second message on, the old master still accepts writes, but they are lost.
CHANNELS: Final = ("+selected-slave", "+failover-state-wait-promotion", "+promoted-slave", "+switch-master")
# Sentinels tell one another about a failover every two seconds. A Sentinel that missed it is not trusted.
SETTLE_SECONDS: Final = 6.0


class NoMaster(StoreUnavailable):
    """No server that the Sentinels name is a master. Servers that are not `named` must not be used."""

    def __init__(self, message: str, named: Sequence[Address]) -> None:
        super().__init__(message, sent=False)
        self.named = tuple(named)


class SentinelReport(NamedTuple):
    """One Sentinel's report on a service."""

    epoch: int  # of the last failover that it knows
    master: Address
    promoted: Address | None = None  # the replica that takes over, during a failover


class Candidates:
    """Ranks the servers that may be the master, by the reports of all Sentinels.

    The latest epoch counts: a Sentinel that missed a failover names a server that was replaced. Within an epoch, a
    replica that is being promoted comes first, because its Sentinel keeps naming the old master for up to a second.
    """

    def __init__(self) -> None:
        self._epoch = 0  # the latest reported
        self._heard_at = float("-inf")  # when it was last reported

    def rank(self, reports: Sequence[SentinelReport], now: float) -> list[Address]:
        """Return the candidates, best first; none if all reports are older than one from a few seconds ago."""
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
    """Return the fields of a RESP3 map, or of a flat list."""
    pairs = reply.items() if isinstance(reply, Mapping) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): value.decode() for name, value in pairs}


def _address(fields: dict[str, str]) -> Address:
    return fields["ip"], int(fields["port"])
