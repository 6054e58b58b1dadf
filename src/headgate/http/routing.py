"""Finds the route of an ASGI request before the app does, among routes of Starlette and FastAPI.

It goes by the routes' attributes, and imports no framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, NamedTuple

from headgate.http.route import RouteLimit, limits_on


class RouteMatch(NamedTuple):
    """A route: its template and its own limits."""

    template: str  # with the prefixes of mounts: `/v1/users/{id}`
    limits: list[RouteLimit]


def find_route(routes: Iterable[Any], scope: MutableMapping[str, Any]) -> RouteMatch | None:
    """Return the route of a request; a route with another method if no other matches, or None."""
    path: str = scope["path"]
    root = scope.get("root_path", "")
    if root and path.startswith(root):
        path = path[len(root) :] or "/"
    return _find(routes, path, scope.get("method") if scope["type"] == "http" else None)


def _find(routes: Iterable[Any], path: str, method: str | None) -> RouteMatch | None:
    other: RouteMatch | None = None  # for another method
    for route in _flat(routes):
        match = None if not hasattr(route, "path_regex") else route.path_regex.match(path)
        if match is None:
            continue
        if hasattr(route, "routes"):  # a mount: the rest of the path is its app's
            rest = "/" + match.groupdict().get("path", "").lstrip("/")
            inner = _find(route.routes or (), rest, method)
            prefix: str = route.path_format.removesuffix("/{path}")
            return RouteMatch(f"{prefix}/*", []) if inner is None else inner._replace(template=prefix + inner.template)
        if hasattr(route, "methods") != (method is not None):
            continue  # one is for HTTP, the other for WebSockets
        found = RouteMatch(route.path_format, list(_limits(route, method)))
        if method is None or not route.methods or method in route.methods:
            return found
        other = other or found
    return other


def _flat(routes: Iterable[Any]) -> Iterator[Any]:
    """Yield routes, and in place of FastAPI's included routers their routes."""
    for route in routes:
        included = getattr(route, "effective_route_contexts", None)
        if included is None:
            yield route
        else:
            for context in included():
                yield getattr(context, "starlette_route", None) or context


def _limits(route: Any, method: str | None) -> Iterator[RouteLimit]:
    endpoint = getattr(route, "endpoint", None)
    yield from limits_on(endpoint)
    if isinstance(endpoint, type) and method is not None:  # a class with a handler for each HTTP method
        yield from limits_on(getattr(endpoint, "get" if method == "HEAD" else method.lower(), None))
    dependant = getattr(route, "dependant", None)
    if dependant is not None:
        yield from limits_of_dependencies(dependant)


def limits_of_dependencies(dependant: Any) -> Iterator[RouteLimit]:
    """Yield the limits among a route's dependencies."""
    limit = getattr(dependant.call, "limit", None)
    if isinstance(limit, RouteLimit):
        yield limit
    for one in dependant.dependencies:
        yield from limits_of_dependencies(one)
