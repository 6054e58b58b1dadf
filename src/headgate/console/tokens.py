"""The page of tokens: lists, creates and revokes them."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from headgate.console.page import Page, PageRoute
from headgate.operations.caller import ROLES, SCOPES

MAX_TOKENS: Final = 500


async def list_tokens(page: Page) -> Response:
    found = await page.read(page.services.tokens.page, max_items=MAX_TOKENS)
    tokens = sorted(found, key=lambda token: (not token.is_good(page.now_us), token.name))
    return page.render("tokens.html", tokens=tokens, may_change=page.caller.may("tokens", "admin"))


async def form(page: Page) -> Response:
    return page.render("token_form.html", roles=ROLES, scopes=[one for one in SCOPES if one in page.caller.scopes])


async def create(page: Page) -> Response:
    """Create a token, and show its secret once."""
    table = {"name": page.text("name"), "role": page.text("role"), "expires_in": page.text("expires_in") or "90d"}
    scopes = [str(one) for one in page.form.getlist("scopes")]
    token, secret = await page.services.tokens.create(page.actor, {**table, "scopes": scopes})
    return page.render("token_created.html", token=token, secret=secret)


async def confirm(page: Page) -> Response:
    return page.render("token_revoke.html", token_id=page.query.get("id", ""), name=page.query.get("name", ""))


async def revoke(page: Page) -> Response:
    await page.services.tokens.revoke(page.actor, page.text("id"))
    return page.redirect("/tokens", f"The token {page.text('name')} is revoked.")


ROUTES: Final = (
    PageRoute("/tokens", list_tokens),
    PageRoute("/tokens/new", form),
    PageRoute("/tokens/new", create, "POST"),
    PageRoute("/tokens/revoke", confirm),
    PageRoute("/tokens/revoke", revoke, "POST"),
)
