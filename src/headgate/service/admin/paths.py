"""Identifiers in paths: any text, also one with slashes and line breaks in it, as ids of rules and users may have."""

from __future__ import annotations

from typing import Final

from starlette.convertors import Convertor, register_url_convertor

RULE: Final = "/{rule_id:headgate}"  # to be at the end of a path
USER: Final = "/{user_id:headgate}"


class _Identifier(Convertor[str]):
    """Starlette's own `path` stops at a line break."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("headgate", _Identifier())
