"""`headgate explain`: shows why a request is allowed or refused, as a small tree."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from headgate.cli.check import Cost, about_request, cost_of, summary
from headgate.cli.client import Json, ServiceClient
from headgate.cli.options import ADMIN, AsJson, calls_service
from headgate.cli.output import STYLES, CommandFault, duration, emit, local_time, printable
from headgate.core.cost import cost_text

_SOURCES: Final = {"request": "from the request", "user": "the user's own", "default": "the default"}
_OVER: Final = {"log_only": "would refuse (only logs)", "annotate": "is over its limit (only annotates)"}
_MISSED: Final = "dim"
NO_WIDTH: Final = 100_000  # columns


@calls_service(*ADMIN)
@about_request
def explain(
    client: ServiceClient,
    facts: Json,
    cost: Cost = None,
    decision_id: Annotated[
        str | None, typer.Option("--id", help="Explain a past refusal by its decision_id.", metavar="ID")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain why a request would be allowed or refused, rule by rule, and what would let it pass. Charges nothing.

    With --id, explains a past refusal.
    """
    if decision_id is not None:
        if facts:
            raise CommandFault("--id names a past request: leave out its facts")
        found = client.get(f"/api/v1/events/{quote(decision_id, safe='')}")
    else:
        found = client.post("/api/v1/explain", {**facts, "cost": cost_of(cost)})
    if as_json:
        emit(found)
    else:
        _show(explanation_tree(found) if decision_id is None else event_tree(found))


def explanation_tree(explanation: Json) -> Tree:
    """Return an explanation as a tree."""
    decision = explanation["decision"]
    tree = Tree(_text(summary(decision), STYLES["allowed" if decision["allowed"] else "refused"]))
    if not explanation["enabled"]:
        tree.add(_text("all rules are switched off"))
    exemption = explanation["exemption"]
    if exemption is not None:
        tree.add(_text(f"exempt: {exemption['type']} {exemption['value']}"))
    if explanation["tier"] is not None:
        tree.add(_text(f"tier {explanation['tier']}: {_SOURCES[explanation['tier_source']]}"))
    for remedy in explanation["remedies"]:
        tree.add(_text(_remedy(remedy), "bold"))
    for rule in explanation["rules"]:
        _add_rule(tree, rule)
    if explanation["omitted"]:
        tree.add(_text(f"and {explanation['omitted']:,} less relevant rules", _MISSED))
    return tree


def event_tree(event: Json) -> Tree:
    """Return a recorded refusal as a tree."""
    passed = "annotated" if event["reason"] == "annotate" else "would have been refused"
    verdict = passed if event["allowed"] else "refused"
    tree = Tree(_text(f"{verdict} by {event['rule']}: {event['reason']}", STYLES["refused"]))
    tree.add(_text(f"at {local_time(event['at'])}, on {event['node']}"))
    request = " ".join(part for part in (event["method"], event["endpoint"]) if part)
    if request:
        tree.add(_text(request))
    known = {name: event[name] for name in ("user", "ip", "api_key", "tenant", "tier") if event[name] is not None}
    for name, value in {**known, **event["facts"]}.items():
        tree.add(_text(f"{name} {value}"))
    limit = tree.add(_text(f"limit of {event['dimension']} {event['subject']}".rstrip()))
    limit.add(_text(f"{event['remaining']:,} of {event['limit']:,} were left; the request cost {event['cost']:,}"))
    wait = (
        "it would never have been allowed"
        if event["retry_after"] is None
        else f"retry after {duration(event['retry_after'])}"
    )
    limit.add(_text(wait))
    if event["weight"] > 1:
        tree.add(_text(f"stands for {event['weight']:,} events of a flood"))
    return tree


def _add_rule(tree: Tree, rule: Json) -> None:
    if not rule["applies"]:
        branch = tree.add(_text(f"{rule['rule']} does not apply", _MISSED))
        for unmet in rule["unmet"]:
            branch.add(_text(unmet["message"], _MISSED))
        if rule["lost_to"] is not None:
            why = f"{rule['lost_to']} applies in its place, in group {rule['group']}: {rule['lost_because']}"
            branch.add(_text(why, _MISSED))
        return
    state = rule["state"]
    refuses = state is not None and not state["allowed"]
    verdict = _OVER.get(rule["action"], "refuses") if refuses else "has room"
    style = STYLES["refused"] if refuses and rule["action"] not in _OVER else STYLES["allowed"]
    branch = tree.add(_text(f"{rule['rule']} {verdict}: {rule['quota']}", style))
    if rule["override"] is not None:
        expires = rule["override"]["expires"]
        until = f", until {local_time(expires)}" if expires is not None else ""
        branch.add(_text(f"override of user {rule['override']['user']}{until}; the rule has {rule['rule_quota']}"))
    if state is not None:
        text = f"{state['used']:,} of {state['limit']:,} used, {state['remaining']:,} left"
        if state["reset_after"] > 0:
            text += f", all of them in {duration(state['reset_after'])}"
        branch.add(_text(text))
        if refuses:
            after = state["retry_after"]
            branch.add(_text("the cost never fits" if after is None else f"retry after {duration(after)}"))
    if rule["cost"] != 1:
        branch.add(_text(f"costs {rule['cost']:,}"))
    branch.add(_text(f"key {rule['key']}", _MISSED))


def _remedy(remedy: Json) -> str:
    if remedy["kind"] == "wait":
        return f"passes in {duration(remedy['value'])}, at {local_time(remedy['at'])}"
    if remedy["kind"] == "tier":
        return f"passes with tier {remedy['value']}"
    return f"passes now at a cost of up to {cost_text(remedy['value'])}"


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style)


def _show(tree: Tree) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:  # pipes have no width: cut nothing off
        console.width = NO_WIDTH
    console.print(tree)
