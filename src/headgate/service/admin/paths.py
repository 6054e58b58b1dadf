"""Identifiers in paths. Ids of rules and users may contain slashes and line breaks."""

from __future__ import annotations

from typing import Final

from starlette.convertors import Convertor, register_url_convertor

RULE: Final = "/{rule_id:headgate}"  # only at the end of a path
USER: Final = "/{user_id:headgate}"


class _Identifier(Convertor[str]):
    """A convertor that accepts any text. Starlette's own `path` stops at a line break."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("headgate", _Identifier())
