"""Regions and leases: how rules are doing that several regions share, or that nodes hold slices of."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from starlette.responses import Response

from headgate.console.page import Page, PageRoute

LEASES: Final = {  # what is shown of leases
    "checks": "Checks",
    "hits": "Decided on this node",
    "calls": "Calls to the store",
    "fetches": "Slices fetched",
    "fetched": "Fetched in them",
    "returned": "Returned unused",
    "stranded": "Lost with their windows",
    "outstanding": "Held now",
    "unanswered": "Not answered yet",
    "keys": "Keys held now",
}


async def regions(page: Page) -> Response:
    page.caller.require("rules")
    limiter = page.services.operations.limiter
    snapshot = page.services.operations.source.holder.current
    figures = asdict(limiter.leases())
    return page.render(
        "regions.html",
        regions=limiter.regions(),
        leases=[(label, figures[name]) for name, label in LEASES.items()],
        leased=sorted(snapshot.leased),
        spread=sorted(snapshot.spread.items()),
    )


ROUTES: Final = (PageRoute("/regions", regions),)
