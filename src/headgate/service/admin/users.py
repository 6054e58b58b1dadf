"""Users: their tiers, their overrides, and what they have left."""

# No `from __future__ import annotations`: FastAPI reads the annotations of routes.

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from headgate.core.decision import Decision
from headgate.core.quota import Quota
from headgate.db.records import user_table
from headgate.errors import InvalidRule, Problem
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.document import override_from
from headgate.rules.users import MAX_ID, User, misfit
from headgate.service.admin import models
from headgate.service.admin.bodies import Table, json_object, json_with_nulls, with_time
from headgate.service.admin.context import Context, Here, Who, needs
from headgate.service.admin.models import body, problems
from headgate.service.admin.pages import Paged, storable
from headgate.service.admin.paths import USER

router: Final = APIRouter(prefix="/users", tags=["Users"])
Given = Annotated[Table, Depends(json_object)]
_BLIND: Final = ("fail_open", "fail_closed", "local_fallback")  # reasons of decisions that the store had no part in


@router.get(
    f"{USER}/limits",
    dependencies=[needs("users")],
    summary="What limits a user has, and what is left of them",
    operation_id="get_user_limits",
    responses={200: {"model": models.UserLimits}},
)
async def get_limits(here: Here, user_id: str, page: Paged) -> Response:
    """A user's tier and overrides, and every rule that counts by user and may apply to them, with its quota for them.

    Of rules of dimension `user`, also the figures right now; nothing is charged. Those of rules that count by user and
    something else (`user+endpoint`) depend on the request: ask `POST /v1/peek` for one. A user who is not known has
    no tier and no overrides of their own, and limits all the same.
    """
    _check(user_id)
    snapshot = here.source.holder.current
    user = await _user(here, snapshot, user_id)
    tier = snapshot.default_tier if user is None or user.tier is None else user.tier
    now_us = here.limiter.clock.now_us()
    rules = sorted((rule for rule in snapshot.rules if _may_apply(rule, tier)), key=lambda rule: rule.id)
    rules = [rule for rule in rules if page.after is None or rule.id > page.after][: page.most]
    quotas = _quotas(user, {rule.id: rule for rule in rules}, now_us)
    decision = await _peek(here, [rule for rule in rules if rule.facts == ("user",)], user, user_id)
    statuses = {} if decision is None else {status.rule: status for status in decision.limits}

    def shown(rule: Rule) -> Table:
        status = statuses.get(rule.id)
        figures = None
        if status is not None and decision is not None:
            figures = {
                "allowed": status.allowed,
                "limit": status.limit,
                "remaining": status.remaining,
                "reset_after": status.reset_after,
                "reset_at": decision.at_us / 1e6 + status.reset_after,
                "retry_after": status.retry_after,
            }
        return {
            "rule": rule.id,
            "dimension": rule.dimension,
            "action": rule.action,
            "endpoints": list(rule.endpoints),
            "methods": list(rule.methods),
            "quota": _quota_table(quotas.get(rule.id, rule.quota)),
            "overridden": rule.id in quotas,
            "figures": figures,
        }

    others = {
        "user": user_id,
        "tier": tier,
        "own_tier": None if user is None else user.tier,
        "exempt": snapshot.is_exempt({"user": user_id}),
        "overrides": [] if user is None else _overrides(user, now_us),
    }
    return page.response("limits", rules, lambda rule: rule.id, shown, **others)


@router.put(
    f"{USER}/tier",
    dependencies=[needs("users", "operator")],
    summary="Set a user's tier",
    operation_id="put_user_tier",
    openapi_extra=body(models.TierChoice),
    responses={200: {"model": models.User}, **problems(400, 409, 413, 415)},
)
def put_tier(here: Here, who: Who, user_id: str, given: Annotated[Table, Depends(json_with_nulls)]) -> Response:
    """Put a user on a tier; null: on none of their own, so that the default counts."""
    changes = here.writable
    wrong = [] if "tier" in given else [Problem(f"user {user_id!r}", "tier", "is missing; null: none of their own")]
    tier = given.pop("tier", None)
    wrong += [Problem(f"user {user_id!r}", name, "unknown key") for name in given]
    if tier is not None and not isinstance(tier, str):
        wrong.append(Problem(f"user {user_id!r}", "tier", f"must be a text or null, got {tier!r}"))
    if wrong:
        raise InvalidRule(*wrong)
    with changes.begin(who.name) as change:
        change.set_tier(user_id, tier)
        user = change.user(user_id)
    return _answer(user_id, user)


@router.post(
    f"{USER}/override",
    dependencies=[needs("users", "operator")],
    summary="Give a user their own figures for a rule",
    operation_id="post_user_override",
    openapi_extra=body(models.Override),
    responses={200: {"model": models.User}, **problems(400, 409, 413, 415)},
)
def post_override(here: Here, who: Who, user_id: str, given: Given) -> Response:
    """Set a user's override of a rule, in place of the one that they may have: until `expires`, or for ever."""
    changes = here.writable
    override = override_from(user_id, with_time(given, "expires"))
    with changes.begin(who.name) as change:
        change.put_override(user_id, override)
        user = change.user(user_id)
    return _answer(user_id, user)


@router.delete(
    f"{USER}/override",
    status_code=204,
    dependencies=[needs("users", "operator")],
    summary="Take an override from a user",
    operation_id="delete_user_override",
    responses=problems(404, 409),
)
def delete_override(
    here: Here, who: Who, user_id: str, rule: Annotated[str, Query(description="The id of the rule.", max_length=1024)]
) -> Response:
    """Delete a user's override of a rule, which then limits them like others."""
    changes = here.writable
    storable("rule", rule)
    with changes.begin(who.name) as change:
        change.delete_override(user_id, rule)
    return Response(status_code=204)


def _check(user_id: str) -> None:
    if not 1 <= len(user_id) <= MAX_ID:
        raise InvalidRule(Problem("user", "id", f"must have from 1 to {MAX_ID} characters, got {len(user_id)}"))


async def _user(here: Context, snapshot: Snapshot, user_id: str) -> User | None:
    """A user as they are in the database, or in the file."""
    if here.changes is not None:
        return await run_in_threadpool(here.changes.user, user_id)
    return next((user for user in snapshot.users if user.id == user_id), None)


def _may_apply(rule: Rule, tier: str | None) -> bool:
    return rule.enabled and "user" in rule.facts and (not rule.tiers or tier in rule.tiers)


def _quotas(user: User | None, rules: dict[str, Rule], now_us: int) -> dict[str, Quota]:
    """The quotas that a user's overrides give them, by rule."""
    quotas = {}
    for override in () if user is None else user.overrides:
        rule = rules.get(override.rule)
        if rule is not None and not override.has_expired(now_us) and misfit(override, rule) is None:
            quotas[rule.id] = override.applied_to(rule.quota)
    return quotas


async def _peek(here: Context, rules: list[Rule], user: User | None, user_id: str) -> Decision | None:
    """What the store says of these rules for a user, whatever endpoint they are for. None: it cannot say.

    The rules without their conditions keep the same counts: where those lie depends on neither.
    """
    if not rules:
        return None
    there = {rule.id for rule in rules}
    own = [] if user is None else [one for one in user.overrides if one.rule in there]
    own = [one for one in own if misfit(one, next(rule for rule in rules if rule.id == one.rule)) is None]
    snapshot = Snapshot([_unconditional(rule) for rule in rules], users=[User(id=user_id, overrides=own)])
    decision = await here.limiter.sibling(snapshot).peek(user=user_id)
    return None if decision.reason in _BLIND else decision


def _unconditional(rule: Rule) -> Rule:
    kept: Any = {
        name: getattr(rule, name)
        for name in ("id", "quota", "dimension", "action", "max_delay", "failure_mode", "cost")
    }
    return Rule(**kept)


def _overrides(user: User, now_us: int) -> list[Table]:
    tables = (user_table(user) or {}).get("overrides", [])
    return [{**table, "expired": one.has_expired(now_us)} for table, one in zip(tables, user.overrides, strict=True)]


def _quota_table(quota: Quota) -> Table:
    return {"algorithm": quota.algorithm, "limit": quota.limit, "window": quota.window, "burst": quota.burst}


def _answer(user_id: str, user: User | None) -> Response:
    table = {"id": user_id, "tier": None, "overrides": [], **(user_table(user) or {})}
    return JSONResponse(table)
