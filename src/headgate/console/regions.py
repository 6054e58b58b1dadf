"""Regions and leases: how rules are doing that several regions share, or that nodes hold slices of."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from starlette.responses import Response

from headgate.console.page import Page, PageRoute


async def regions(page: Page) -> Response:
    page.caller.require("rules")
    limiter = page.services.operations.limiter
    snapshot = page.services.operations.source.holder.current
    return page.render(
        "regions.html",
        regions=limiter.regions(),
        leases=asdict(limiter.leases()),
        leased=sorted(snapshot.leased),
        spread=sorted(snapshot.spread.items()),
    )


ROUTES: Final = (PageRoute("/regions", regions),)
