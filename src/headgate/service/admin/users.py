"""Routes of users: their tiers and limits, singly or in batches."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import JSONResponse

from headgate.core.quota import MICROSECONDS, Quota
from headgate.db.records import override_table, user_table
from headgate.operations.user_limits import UserLimit, UserLimits
from headgate.rules.users import User
from headgate.service.admin import models
from headgate.service.admin.bodies import Table, json_batch, json_with_nulls
from headgate.service.admin.context import Here, Who, needs
from headgate.service.admin.openapi_parts import body, problems
from headgate.service.admin.pages import Paged, Text, storable
from headgate.service.admin.paths import USER

router: Final = APIRouter(prefix="/users", tags=["Users"])


@router.get("", dependencies=[needs("users")], summary="List users", responses={200: {"model": models.Users}})
def list_users(
    here: Here, who: Who, page: Paged, tier: Annotated[Text, Query(description="Only users on this tier.")] = None
) -> Response:
    """List all users with their own tier, anchor or overrides by id, in pages."""
    storable("tier", tier)
    found = here.operations.users.page(who, tier=tier, after=page.after, max_items=page.max_items)
    return page.response("users", found, lambda user: user.id, user_shown)


@router.put(
    ":batch",
    dependencies=[needs("users", "operator")],
    summary="Change many users",
    openapi_extra=body(models.UserBatch),
    responses={200: {"model": models.BatchDone}, **problems(400, 409, 413, 415)},
)
def put_users_batch(here: Here, who: Who, table: Annotated[Table, Depends(json_batch)]) -> Response:
    """Change at most 10,000 users and overrides in one transaction: all of them, or none if any is invalid.

    Each of `users` is replaced; one without tier, anchor and overrides is deleted. Each of `overrides` replaces the
    user's override of its rule, and leaves the user's tier, anchor and other overrides unchanged.
    """
    return JSONResponse(here.operations.users.put_batch(who, table)._asdict())


@router.get(
    f"{USER}/limits",
    dependencies=[needs("users")],
    summary="Get a user's limits, and what is left of them",
    responses={200: {"model": models.UserLimits}},
)
async def get_user_limits(here: Here, who: Who, user_id: str, page: Paged) -> Response:
    """Return a user's tier, anchor and overrides, and every rule that counts by user and may apply, with its quota for
    the user.

    Rules of dimension `user` also have their current figures; nothing is charged. The figures of other dimensions, such
    as `user+endpoint`, depend on the request: use `POST /v1/peek`. An unknown user has no tier and no overrides, but
    still has limits.
    """
    users = here.operations.users
    found = await users.limits(who, user_id, after=page.after, max_items=page.max_items)
    user, now_us = found.user, users.now_us()
    others = {
        "user": user_id,
        "tier": found.tier,
        "own_tier": None if user is None else user.tier,
        "anchor": None if user is None else user.anchor,
        "exempt": found.exempt,
        "overrides": [
            {**override_table(one), "expired": one.has_expired(now_us)} for one in (user.overrides if user else ())
        ],
    }
    return page.response(
        "limits", found.limits, lambda limit: limit.rule.id, lambda limit: _limit_shown(limit, found), **others
    )


@router.put(
    f"{USER}/tier",
    dependencies=[needs("users", "operator")],
    summary="Set a user's tier or anchor",
    openapi_extra=body(models.TierChoice),
    responses={200: {"model": models.User}, **problems(400, 409, 413, 415)},
)
def put_user_tier(here: Here, who: Who, user_id: str, table: Annotated[Table, Depends(json_with_nulls)]) -> Response:
    """Set a user's tier, anchor or both. A field that you leave out is unchanged; null removes it.

    Without an own tier, the default tier applies; without an own anchor, the anchors of the rules apply.
    """
    return JSONResponse(user_shown(here.operations.users.set_tier(who, user_id, table)))


@router.delete(
    USER,
    status_code=204,
    dependencies=[needs("users", "operator")],
    summary="Delete a user's tier, anchor and overrides",
    responses=problems(404, 409),
)
def delete_user(here: Here, who: Who, user_id: str) -> Response:
    """Delete a user's tier, anchor and all overrides: the user is then on the default tier, and limited like others."""
    here.operations.users.delete(who, user_id)
    return Response(status_code=204)


def user_shown(user: User) -> Table:
    """Return a user as JSON data, with empty members for an unknown user."""
    return {"tier": None, "overrides": [], **(user_table(user) or {})}


def _limit_shown(limit: UserLimit, found: UserLimits) -> Table:
    rule, status = limit.rule, limit.status
    figures = None
    if status is not None:
        figures = {
            "allowed": status.allowed,
            "limit": status.limit,
            "remaining": status.remaining,
            "reset_after": status.reset_after,
            "reset_at": found.at_us / MICROSECONDS + status.reset_after,
            "retry_after": status.retry_after,
        }
    return {
        "rule": rule.id,
        "dimension": rule.dimension,
        "action": rule.action,
        "unit": rule.unit,
        "endpoints": list(rule.endpoints),
        "methods": list(rule.methods),
        "quota": _quota_table(limit.quota),
        "overridden": limit.overridden,
        "figures": figures,
    }


def _quota_table(quota: Quota) -> Table:
    is_dated = quota.calendar is not None
    return {
        "algorithm": "fixed_window" if is_dated else quota.algorithm,
        "limit": quota.limit,
        "window": quota.window,
        "burst": quota.limit if is_dated else quota.burst,
        "notation": str(quota),
    }
