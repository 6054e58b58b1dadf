"""Merges the metrics pages of several workers into one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

EOF: Final = "# EOF"  # the end of an OpenMetrics page
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(\})?)?")


def merge_pages(pages: Mapping[str, bytes]) -> bytes:
    """Merge the pages of several workers, by name, into one. Every sample gets the label `worker`.

    All pages have one format, Prometheus's text or OpenMetrics. Raises `ValueError` for any other.
    """
    families: dict[str, tuple[dict[str, None], list[str]]] = {}  # a family's descriptive lines, and its samples
    ends = False
    for worker, page in pages.items():
        label = 'worker="{}"'.format(worker.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
        family: tuple[dict[str, None], list[str]] | None = None
        whole = page[: page.rfind(b"\n") + 1]  # a worker may end before it has sent the whole page
        for line in whole.decode().split("\n"):
            if line == EOF:
                ends = True
            elif line.startswith(("# HELP ", "# TYPE ", "# UNIT ")):
                family = families.setdefault(line.split(" ", 3)[2], ({}, []))
                family[0].setdefault(line)
            elif line and not line.startswith("#"):
                if family is None:
                    raise ValueError(f"metrics of worker {worker}: a sample before any # TYPE: {line!r}")
                family[1].append(_add_label(line, label, worker))
    lines = [line for described, samples in families.values() for line in (*described, *samples)]
    if ends:
        lines.append(EOF)
    return "".join(f"{line}\n" for line in lines).encode()


def _add_label(line: str, label: str, worker: str) -> str:
    found = _SAMPLE.match(line)
    if found is None:
        raise ValueError(f"metrics of worker {worker}: not a sample: {line!r}")
    rest = line[found.end() :]
    if found.group().endswith("{"):
        return f"{found[1]}{{{label},{rest}"
    return f"{found[1]}{{{label}}}{rest}"
