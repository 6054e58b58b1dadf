"""The page of regions and leases: the state of rules that regions share, or that nodes hold slices of."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from headgate.console.page import Page, PageRoute

HOW: Final = {  # how regions share a rule
    "central": "one region decides every check",
    "quota": "each region has a fixed share",
    "quota_auto": "each region has a share that follows demand",
    "synced": "each region counts its own checks and those that others report",
}
REGIONS: Final = {  # figures of all regions together
    "grants": "Keys with an agreed share",
    "grant_failures": "Shares not agreed",
    "synced_keys": "Keys synced",
    "synced_excess": "Allowed above limits",
    "fallbacks": "Decided by failure mode",
}
LEASES: Final = {  # figures of leases
    "checks": "Checks",
    "hits": "Decided on this node",
    "calls": "Calls to the store",
    "fetches": "Slices fetched",
    "fetched": "Units fetched",
    "returned": "Units returned",
    "stranded": "Units lost",
    "outstanding": "Units held now",
    "unanswered": "Units to fetch again",
    "keys": "Keys held now",
}


async def regions(page: Page) -> Response:
    page.caller.require("rules")
    limiter = page.operations.limiter
    snapshot = page.snapshot
    status, leases = limiter.regions(), limiter.leases()
    return page.render(
        "regions.html",
        region=status.region,
        peers=status.peers,
        cut=[name for name, peer in status.peers.items() if peer.cut],
        figures=[(label, getattr(status, name)) for name, label in REGIONS.items()],
        leases=[(label, getattr(leases, name)) for name, label in LEASES.items()],
        leased=sorted(snapshot.leased),
        spread=[(rule, how, HOW.get(how, "")) for rule, how in sorted(snapshot.spread.items())],
    )


ROUTES: Final = (PageRoute("/regions", regions),)
