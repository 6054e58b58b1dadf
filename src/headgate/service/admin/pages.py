"""Lists in pages: so many entries at once, and where to go on."""

# No `from __future__ import annotations`: FastAPI reads the annotations of dependencies.

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse

from headgate.db.records import unstorable
from headgate.errors import InvalidRule, Problem

T = TypeVar("T")

Text = Annotated[str | None, Query(max_length=1024)]


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is asked for."""

    request: Request
    limit: int
    after: str | None

    @property
    def most(self) -> int:
        """How many to fetch: one more than asked for tells whether there are more."""
        return self.limit + 1

    @property
    def after_number(self) -> int | None:
        """`after` where entries go by numbers. Raises `InvalidRule`."""
        if self.after is None:
            return None
        if not self.after.isascii() or not self.after.isdigit() or len(self.after) > 18:
            raise InvalidRule(Problem("query", "after", f"must be what `next` said, got {self.after!r}"))
        return int(self.after)

    def response(
        self,
        name: str,
        found: Sequence[T],
        cursor: Callable[[T], Any],
        table: Callable[[T], dict[str, Any]],
        **others: Any,
    ) -> JSONResponse:
        """The entries under a name, and where to go on as `next` and as a Link; null, and none, at the end."""
        shown = found[: self.limit]
        following = str(cursor(shown[-1])) if len(found) > self.limit else None
        headers = {}
        if following is not None:
            url = self.request.url.include_query_params(after=following, limit=self.limit)
            headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
        return JSONResponse({name: [table(one) for one in shown], "next": following, **others}, headers=headers)


def page_of(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many entries at most.")] = 100,
    after: Annotated[
        str | None, Query(max_length=1024, description="Where to go on: the `next` of the page before.")
    ] = None,
) -> Page:
    storable("after", after)
    return Page(request, limit, after)


def storable(field: str, value: str | None) -> None:
    """Raises `InvalidRule` for a parameter that no database can have."""
    problem = None if value is None else unstorable(value)
    if problem is not None:
        raise InvalidRule(Problem("query", field, problem))


Paged = Annotated[Page, Depends(page_of)]
