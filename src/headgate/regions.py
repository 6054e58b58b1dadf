"""Regions, for `Limiter(region=...)` and its status: the public names of `headgate.features.regions`."""

from headgate.features.regions.protocol import PeerStatus, RegionStatus
from headgate.features.regions.region import Member, Region

__all__ = ["Member", "PeerStatus", "Region", "RegionStatus"]
