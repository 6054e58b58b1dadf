"""One limit over several regions: central, shares, synced counts.

`region` says who we are and who the others are. `division`, `grants`, `shares`, `counts` and `router` do no I/O: they
yield what is to be asked of which region's store, and `sync` and `aio` ask it.
"""

from headgate.limiter.region_protocol import PeerStatus, RegionStatus
from headgate.regions.region import Member, Region

__all__ = ["Member", "PeerStatus", "Region", "RegionStatus"]
