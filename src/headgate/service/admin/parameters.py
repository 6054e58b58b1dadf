"""Checks query parameters, as FastAPI ignores a mistyped one and would return more than the caller asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute

from headgate.core.suggestion import did_you_mean
from headgate.errors import InvalidRule, Problem


async def check_parameters(request: Request) -> None:
    """Raise `InvalidRule` for a query parameter that the route does not have, or that is given twice."""
    given = [name for name, _ in request.query_params.multi_items()]
    if not given:
        return
    known = parameters_of(request.scope["route"])
    problems = []
    for name in dict.fromkeys(given):
        if name not in known:
            problems.append(Problem("query", name, f"is not a parameter of this path{did_you_mean(name, known)}"))
        elif given.count(name) > 1:
            problems.append(Problem("query", name, f"must be given once, got it {given.count(name)} times"))
    if problems:
        raise InvalidRule(*problems)


def parameters_of(route: APIRoute) -> frozenset[str]:
    """Return the names of a route's query parameters, those of its dependencies included."""
    return frozenset(_names(route.dependant))


def _names(dependant: Any) -> Iterator[str]:
    for field in dependant.query_params:
        yield field.alias
    for part in dependant.dependencies:
        yield from _names(part)
