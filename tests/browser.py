"""A real browser for the console: Debian's Chromium, driven by Playwright.

Playwright is imported when it is used: `make test` does without, and mypy treats what is of it as anything.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.service import ROOT, Service

Browser = Any
Page = Any
WIDE = {"width": 1360, "height": 900}
SERIOUS = ("serious", "critical")


@contextmanager
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    path = _printed("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


def expect(of: Any) -> Any:
    """Playwright's assertions, which wait until they hold."""
    from playwright.sync_api import expect as playwright_expect

    return playwright_expect(of)


class Console:
    """A page of the console in a browser of its own: with its own session, and all that it complained about."""

    def __init__(self, browser: Browser, service: Service, token: str | None = None, **options: Any) -> None:
        options = {"viewport": WIDE, "timezone_id": "Europe/Berlin", "locale": "en-GB", **options}
        self._context = browser.new_context(**options)
        self._context.set_default_timeout(20_000)
        self.url = f"{service.url}/console"
        self.page: Page = self._context.new_page()
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda message: self._heard(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"alert: {dialog.message}"))
        self.page.goto(self.url)
        self.page.fill("[name=token]", token or service.admin_token)
        self.page.click("text=Sign in")
        self.page.wait_for_selector("h1:has-text('Overview')")

    def open(self, path: str = "") -> Page:
        self.page.goto(f"{self.url}{path}")
        return self.page

    def violations(self) -> list[str]:
        """What axe-core finds on the page that is serious. The policy keeps scripts out, so it runs beside the page."""
        source = Path(_printed("axe")).read_text()
        found = self.page.evaluate(f"async () => {{ {source}; return (await axe.run()).violations }}")
        return [
            f"{one['id']}: {one['help']}: {[node['html'] for node in one['nodes']][:3]}"
            for one in found
            if one["impact"] in SERIOUS
        ]

    def close(self) -> None:
        self._context.close()

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)


@cache
def _printed(script: str) -> str:
    """What a script prints: where something is."""
    found = subprocess.run([ROOT / "scripts" / script], stdout=subprocess.PIPE, text=True, check=True)
    return found.stdout.strip()
