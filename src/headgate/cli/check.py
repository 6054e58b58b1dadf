"""`headgate check`, `peek` and `reset`: calls to the data plane."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Concatenate, Final

import typer

from headgate.cli import REFUSED
from headgate.cli.client import Json, ServiceClient
from headgate.cli.options import DATA, AsJson, calls_service, optional_parameters, set_parameters
from headgate.cli.output import STYLES, Cell, duration, emit, emit_or_say, say, show_table

_PANEL: Final = "Request"
_FACTS: Final[dict[str, Any]] = {
    "subject": Annotated[str | None, typer.Argument(help="The user; short for --user.", show_default=False)],
    "user": Annotated[str | None, typer.Option(help="The user's id.", rich_help_panel=_PANEL)],
    "ip": Annotated[str | None, typer.Option(help="The client's IP address.", rich_help_panel=_PANEL)],
    "api_key": Annotated[str | None, typer.Option(help="The API key; the service hashes it.", rich_help_panel=_PANEL)],
    "tenant": Annotated[str | None, typer.Option(help="The tenant's id.", rich_help_panel=_PANEL)],
    "endpoint": Annotated[str | None, typer.Option(help="The path, such as /api/search.", rich_help_panel=_PANEL)],
    "method": Annotated[str | None, typer.Option(help="The HTTP method, such as GET.", rich_help_panel=_PANEL)],
    "tier": Annotated[str | None, typer.Option(help="The tier, instead of the user's own.", rich_help_panel=_PANEL)],
    "fact": Annotated[
        list[str] | None,
        typer.Option(help="Any other fact; may be repeated.", metavar="NAME=VALUE", rich_help_panel=_PANEL),
    ],
}
_NO_FACTS: Final = ("cost", "idempotency_key")  # these have their own meaning in a request

Cost = Annotated[
    list[str] | None,
    typer.Option(
        help="The cost: a number of requests, or UNIT=NUMBER, which may be repeated.  [default: 1]",
        metavar="[UNIT=]N",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]


def about_request(
    command: Callable[Concatenate[ServiceClient, Json, ...], None],
) -> Callable[Concatenate[ServiceClient, ...], None]:
    """Decorate a command so that the facts of a request become its options."""
    client, _, *own = inspect.signature(command, eval_str=True).parameters.values()
    own = [one.replace(kind=one.KEYWORD_ONLY) for one in own]

    @wraps(command)
    def run(client: ServiceClient, **options: Any) -> None:
        facts = facts_of(**{name: options.pop(name) for name in _FACTS})
        command(client, facts, **options)

    set_parameters(run, [client, *optional_parameters(_FACTS), *own])
    return run


@calls_service(*DATA)
@about_request
def check(
    client: ServiceClient,
    facts: Json,
    cost: Cost = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeated checks with the same key are charged once.", rich_help_panel=_PANEL)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check and charge a request. Exit code 0: allowed, 1: refused."""
    key = {} if idempotency_key is None else {"idempotency_key": idempotency_key}
    _show(client.check("/v1/check", {**facts, "cost": cost_of(cost), **key}), as_json)


@calls_service(*DATA)
@about_request
def peek(client: ServiceClient, facts: Json, cost: Cost = None, as_json: AsJson = False) -> None:
    """Show what a check would decide, without charging. Exit code 0: allowed, 1: refused."""
    _show(client.check("/v1/peek", {**facts, "cost": cost_of(cost)}), as_json)


@calls_service(*DATA)
@about_request
def reset(client: ServiceClient, facts: Json, as_json: AsJson = False) -> None:
    """Reset the counts of a request's subjects, under every rule that applies to it."""
    shown = facts | ({"api_key": "…"} if "api_key" in facts else {})
    line = f"reset: {', '.join(f'{name} {value}' for name, value in shown.items()) or 'global limits'}"
    emit_or_say(client.post("/v1/reset", facts), line, as_json=as_json)


def facts_of(*, subject: str | None = None, fact: list[str] | None = None, **known: str | None) -> dict[str, Any]:
    """Return the facts of a request from the command's options. Raises `typer.BadParameter`."""
    if subject is not None:
        if known.get("user") is not None:
            raise typer.BadParameter(f"the user is already {subject!r}: leave out one of the two", param_hint="--user")
        known["user"] = subject
    facts = {name: value for name, value in known.items() if value is not None}
    for text in fact or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"must be NAME=VALUE, as in country=DE, got {text!r}", param_hint="--fact")
        if name in facts or name in _NO_FACTS:
            raise typer.BadParameter(f"{name!r} is given twice, or is not a fact", param_hint="--fact")
        facts[name] = value
    return facts


def cost_of(texts: list[str] | None) -> int | dict[str, int]:
    """Parse costs such as `5`, or `requests=1` and `tokens=4000`. Raises `typer.BadParameter`."""
    amounts: dict[str, int] = {}
    for text in texts or ["1"]:
        unit, _, digits = text.rpartition("=")
        if not (digits.isascii() and digits.isdecimal()) or unit in amounts:
            raise typer.BadParameter(
                f"must be a whole number, or UNIT=N as in tokens=4000, each unit once, got {text!r}",
                param_hint="--cost",
            )
        amounts[unit] = int(digits)
    if "" not in amounts:
        return amounts
    if len(amounts) > 1:
        raise typer.BadParameter("name the unit of each, as in requests=1", param_hint="--cost")
    return amounts[""]


def summary(decision: Json) -> str:
    """Return a decision as one line."""
    verdict = "allowed" if decision["allowed"] else "refused"
    rule, reason = decision["rule"], decision["reason"]
    why = _WHY.get(reason)
    if rule is None:
        return f"{verdict}: {why or reason}"
    parts = [f"{decision['remaining']:,} of {decision['limit']:,} left"]
    if decision["reset_after"] > 0:
        parts.append(f"all of them in {duration(decision['reset_after'])}")
    if decision["delay"] > 0:
        parts.append(f"its turn is in {duration(decision['delay'])}")
    if not decision["allowed"]:
        after = decision["retry_after"]
        parts.append("the cost never fits" if after is None else f"retry after {duration(after)}")
    return f"{verdict} by {rule}{f' ({why})' if why else ''}: {', '.join(parts)}"


_WHY: Final = {
    "no_rule": "no rule applies",
    "exempt": "exempt from all rules",
    "shadow": "it is over the limit of a rule that only logs or annotates",
    "penalty": "blocked, because it was refused too often",
    "fail_open": "the store does not answer, and the failure mode is open",
    "fail_closed": "the store does not answer, and the failure mode is closed",
    "local_fallback": "the store does not answer, and the service decides locally",
}


def _show(decision: Json, as_json: bool) -> None:
    if as_json:
        emit(decision)
    else:
        say(summary(decision), STYLES["allowed" if decision["allowed"] else "refused"])
        if decision["limits"]:
            columns = ("rule", "decision", "quota", "remaining", "limit", "reset", "retry after")
            show_table(columns, map(_row, decision["limits"]))
    if not decision["allowed"]:
        raise typer.Exit(REFUSED)


def _row(limit: Json) -> tuple[Cell, ...]:
    allowed = limit["allowed"]
    return (
        limit["rule"],
        "allowed" if allowed else "refused" if limit["enforced"] else "shadow",
        limit["quota"],
        limit["remaining"],
        limit["limit"],
        duration(limit["reset_after"]),
        None if allowed else duration(limit["retry_after"]),
    )
