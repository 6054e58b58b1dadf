"""Entity tags of versions, and conditional requests (RFC 9110)."""

# No `from __future__ import annotations`: FastAPI reads the annotations of dependencies.

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from headgate.service.http.problems import HttpError

ANY = "*"


def etag(version: int | str) -> str:
    return f'"{version}"'


@dataclass(frozen=True, slots=True)
class Conditions:
    """The fields If-Match and If-None-Match of a request; None if absent."""

    if_match: str | None
    if_none_match: str | None

    def require(self, version: int | str | None) -> None:
        """Raise 412 unless the current version is the one that the caller expects. None: nothing exists."""
        if self.if_match is not None and not _has(self.if_match, version, weak=False):
            now = "is not there" if version is None else f"has the version {etag(version)}"
            raise HttpError(412, f"If-Match: {self.if_match} does not hold: it {now}. Read it again, and retry.")
        if self.if_none_match is not None and _has(self.if_none_match, version, weak=True):
            raise HttpError(412, f"If-None-Match: {self.if_none_match} does not hold: it is there already.")

    def has_known(self, version: int | str) -> bool:
        """Return whether the caller of a read has this version already: then answer 304."""
        return self.if_none_match is not None and _has(self.if_none_match, version, weak=True)


def conditions_of(request: Request) -> Conditions:
    return Conditions(_join_values(request, "if-match"), _join_values(request, "if-none-match"))


If = Annotated[Conditions, Depends(conditions_of)]


def _join_values(request: Request, name: str) -> str | None:
    values = request.headers.getlist(name)
    return ", ".join(values) if values else None


def _has(field: str, version: int | str | None, *, weak: bool) -> bool:
    """Return whether a list of tags names a version. Weak tags only count where nothing is changed."""
    if version is None:
        return False
    tags = [tag.strip() for tag in field.split(",")]
    if weak:
        tags = [tag.removeprefix("W/") for tag in tags]
    return ANY in tags or etag(version) in tags
