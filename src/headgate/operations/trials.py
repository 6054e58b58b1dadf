"""Trials: explains decisions, and tries changed rules without applying them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

from headgate.core.cost import Cost
from headgate.db.events import Events
from headgate.errors import InvalidCheck, InvalidRule, NotFound, Problem
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.operations.caller import Caller
from headgate.operations.event_trial import try_events
from headgate.operations.storage import Storage
from headgate.operations.subjects import api_key_fact
from headgate.replay.record import ClientAddresses
from headgate.rules.explanation import Explanation
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.collection import collection_paused
from headgate.rules.sources.document import parse_toml, rule_from, snapshot_of

Table = dict[str, Any]
MAX_FACTS: Final = 100


class Trials:
    """Explanations and trials. Explaining needs the scope `users`, as it shows users' quotas; trying also `rules`."""

    def __init__(self, storage: Storage, limiter: AsyncLimiter) -> None:
        self._storage = storage
        self._limiter = limiter
        self._addresses = ClientAddresses()

    async def explain(self, caller: Caller, table: Table) -> Explanation:
        """Explain a request, by its facts and `cost` and the current rules. Charges nothing. Raises `InvalidCheck`."""
        caller.require("users")
        facts, cost = self._request(table)
        return await self._limiter.explain(cost=cost, **facts)

    async def try_facts(self, caller: Caller, rules: Table, table: Table) -> Table:
        """Explain a request by changed rules with the current counts, and by the current rules."""
        caller.require("rules")
        caller.require("users")
        facts, cost = self._request(table)
        snapshot = await asyncio.to_thread(self._rules_to_try, rules)
        explanation = await self._limiter.sibling(snapshot).explain(cost=cost, **facts)
        now = await self._limiter.explain(cost=cost, **facts)
        assert explanation.decision is not None
        assert now.decision is not None
        return {
            "explanation": explanation.as_dict(),
            "now": now.as_dict(),
            "changed": explanation.decision["allowed"] != now.decision["allowed"],
        }

    async def try_events(
        self, caller: Caller, rules: Table, events: Events, *, since_us: int | None, until_us: int | None
    ) -> Table:
        """Return how many recorded decisions of a period changed rules would change."""
        caller.require("rules")
        caller.require("events")
        snapshot = await asyncio.to_thread(self._rules_to_try, rules)
        return await asyncio.to_thread(try_events, events, snapshot, since_us, until_us)

    def _request(self, table: Table) -> tuple[dict[str, Any], Cost]:
        """Return a request's facts, normalized as on the data plane, and its cost."""
        if not isinstance(table, dict) or len(table) > MAX_FACTS:
            raise InvalidCheck(f"facts: must be an object of at most {MAX_FACTS} facts, got {type(table).__name__}")
        facts = dict(table)
        cost = facts.pop("cost", None)
        for name, value in facts.items():
            if value is not None and (not isinstance(value, str | int) or isinstance(value, bool)):
                raise InvalidCheck(f"{name}: must be a string or an integer, got {value!r}")
        texts = {name: None if value is None else str(value) for name, value in facts.items()}
        if (ip := texts.get("ip")) is not None:
            texts |= self._addresses.facts(ip)
        if (api_key := texts.get("api_key")) is not None:
            texts["api_key"] = api_key_fact(api_key)
        return texts, 1 if cost is None else cost

    def _rules_to_try(self, table: Table) -> Snapshot:
        """Return the rules to try: `ruleset` replaces all, `rules` replace those with the same ids.

        Raises `InvalidRule` with every problem, and `NotFound` for an unknown id in `delete`.
        """
        current = self._storage.snapshot
        unknown = table.keys() - {"ruleset", "rules", "delete"}
        if unknown or not table:
            message = f"expected ruleset, or rules and delete, got {', '.join(sorted(unknown)) or 'nothing'}"
            raise InvalidRule(Problem("the request", "", message))
        if "ruleset" in table:
            return _read_ruleset(table, current)
        deleted = table.get("delete") or []
        listed = table.get("rules") or []
        if not isinstance(deleted, list) or not isinstance(listed, list):
            raise InvalidRule(Problem("the request", "rules, delete", "must be lists"))
        rules = {rule.id: rule for rule in current.rules}
        for rule_id in deleted:
            if rule_id not in rules:
                raise NotFound(f"delete: there is no rule {rule_id!r}")
            del rules[rule_id]
        for entry in listed:
            if not isinstance(entry, dict):
                raise InvalidRule(Problem("the request", "rules", f"must be rules, got {entry!r}"))
            rule = rule_from({name: value for name, value in entry.items() if value is not None and name != "version"})
            rules[rule.id] = rule
        users = [
            replace(user, overrides=[one for one in user.overrides if one.rule in rules]) for user in current.users
        ]
        return replace(current, rules=tuple(rules.values()), users=users)


def _read_ruleset(table: Table, current: Snapshot) -> Snapshot:
    """Return the rules of a whole file, as TOML or as its data. A database's users stay."""
    if len(table) > 1:
        raise InvalidRule(Problem("the request", "ruleset", "cannot be combined with rules or delete"))
    ruleset = table["ruleset"]
    with collection_paused():
        if isinstance(ruleset, str):
            made = snapshot_of(parse_toml(ruleset.encode()), version="dry-run")
        elif isinstance(ruleset, dict):
            made = snapshot_of(ruleset, version="dry-run")
        else:
            message = f"must be a rules file as text, or its data, got {type(ruleset).__name__}"
            raise InvalidRule(Problem("the request", "ruleset", message))
    if current.directory is not None and not made.users:
        made = replace(made, directory=current.directory)
    return made
