"""Tables as CSV that spreadsheets can open safely."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any, Final

_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")  # a cell that begins so is a formula in a spreadsheet


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV: truth values and objects as in JSON, and no text as a formula."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(map(_cell, row) for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value
