"""Regions, for `Limiter(region=...)` and its status: the public names of `headgate.features.regions`."""

from headgate.features.regions.region import Member, PeerStatus, Region, RegionStatus

__all__ = ["Member", "PeerStatus", "Region", "RegionStatus"]
