"""Pagination of lists: a limit, and a cursor to the next page."""

# No `from __future__ import annotations`: FastAPI reads the annotations of dependencies.

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse

from headgate.db.records import unstorable
from headgate.errors import InvalidRule, Problem

T = TypeVar("T")

_TEXT = r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u00(?:0[1-9a-f]|1[0-9a-f]))*'  # in JSON, without NUL
NUMBER = r"^[0-9]{1,18}$"
PAIR = rf'^\["{_TEXT}","{_TEXT}"\]$'

MAX_CURSOR = 1_100  # characters
Text = Annotated[str | None, Query(max_length=1024)]


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The requested page of a list."""

    request: Request
    limit: int
    after: str | None

    @property
    def max_items(self) -> int:
        """The number of entries to fetch: one extra shows whether there are more."""
        return self.limit + 1

    @property
    def after_number(self) -> int | None:
        """The cursor `after` as a number, for `PagedByNumber`."""
        return None if self.after is None else int(self.after)

    @property
    def after_pair(self) -> tuple[str, str] | None:
        """The cursor `after` as two strings, for `PagedByPair`."""
        if self.after is None:
            return None
        first, second = json.loads(self.after)
        return first, second

    def response(
        self,
        name: str,
        found: Sequence[T],
        cursor: Callable[[T], Any],
        table: Callable[[T], dict[str, Any]],
        **others: Any,
    ) -> JSONResponse:
        """Return the entries under a name, and the cursor of the next page, if any, as `next` and as a Link header."""
        shown = found[: self.limit]
        following = str(cursor(shown[-1])) if len(found) > self.limit else None
        headers = {}
        if following is not None:
            url = self.request.url.include_query_params(after=following, limit=self.limit)
            headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
        return JSONResponse({name: [table(one) for one in shown], "next": following, **others}, headers=headers)


def pair(first: str, second: str) -> str:
    """Return a cursor of two strings."""
    return json.dumps([first, second], ensure_ascii=False, separators=(",", ":"))


def _page_by(pattern: str | None = None) -> Callable[..., PageRequest]:
    """Return a dependency that reads the requested page; `pattern` describes its cursors."""
    longest = MAX_CURSOR if pattern is None else None

    def page_of(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries.")] = 100,
        after: Annotated[
            str | None,
            Query(max_length=longest, pattern=pattern, description="The cursor: `next` of the previous page."),
        ] = None,
    ) -> PageRequest:
        storable("after", after)
        return PageRequest(request, limit, after)

    return page_of


def storable(field: str, value: str | None) -> None:
    """Raise `InvalidRule` for a parameter that no database can store."""
    problem = None if value is None else unstorable(value)
    if problem is not None:
        raise InvalidRule(Problem("query", field, problem))


Paged = Annotated[PageRequest, Depends(_page_by())]
PagedByNumber = Annotated[PageRequest, Depends(_page_by(NUMBER))]
PagedByPair = Annotated[PageRequest, Depends(_page_by(PAIR))]
