"""The service's HTTP side alone, for tests: rules of its own, tokens and store from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headgate import AsyncLimiter, Rule
from headgate.http.identity import hashed_api_key
from headgate.rules import Exemption, Snapshot
from headgate.service.access import Access
from headgate.service.data_plane import DataPlane
from headgate.service.http.app import HttpApp

MUCH = "1000000/366d fixed_window"  # no window turns while a test runs
RULES = [
    Rule(id="much", quota=MUCH, dimension="user"),
    Rule(id="three", quota="3/366d fixed_window", dimension="user", endpoints=["/three"], message="Only three."),
    Rule(id="teapot", quota="1/366d fixed_window", dimension="user", endpoints=["/teapot"], status=418),
    Rule(id="by-ip", quota="3/366d fixed_window", dimension="ip", endpoints=["/ip", "/ip/*"]),
    Rule(id="by-key", quota="3/366d fixed_window", dimension="api_key"),
    Rule(id="login", quota="2/366d fixed_window", dimension="ip", match={"generic_key": "login"}),
    Rule(id="posts", quota="1/366d fixed_window", dimension="ip", endpoints=["/posts"], methods=["POST"]),
    Rule(id="closed", quota=MUCH, dimension="ip", endpoints=["/closed"], failure_mode="closed"),
]


class Well:
    """A service that is well, unless the environment says that it is about to stop."""

    def rules_version(self) -> str | None:
        return "1"

    def is_draining(self) -> bool:
        return "TEST_DRAINING" in os.environ

    def faults(self) -> Mapping[str, str]:
        return {}


async def metrics(accept: str) -> tuple[bytes, str]:
    return b"headgate_up 1\n", "text/plain; version=0.0.4; charset=utf-8"


def made() -> HttpApp:
    """The app. To be made in the event loop's process: `--factory`."""
    exempt = Exemption(type="api_key", value=hashed_api_key("open sesame"))
    snapshot = Snapshot(RULES, exemptions=[exempt])
    limiter = AsyncLimiter(snapshot, store=os.environ.get("TEST_STORE", "memory://"))
    access = Access(admin_token=os.environ.get("TEST_ADMIN_TOKEN"), data_token=os.environ.get("TEST_DATA_TOKEN"))
    return HttpApp(DataPlane(limiter), access, health=Well(), metrics=metrics)
