"""`python -m benchmarks.cut_link`: one link between two of three regions is cut for ten seconds; what is let in, drawn.

One user is asked for in all regions, mostly in one of the two that are cut apart, and has a limit that is reached in
the end. The picture goes to docs/explanation/one-cut-link.svg.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headgate import Limiter, Rule
from tests.continents import NAMES, Continents
from tests.integration.limiters import calm

PICTURE = Path(__file__).parents[1] / "docs" / "explanation" / "one-cut-link.svg"
MODES = ("central", "quota", "quota_auto", "synced")
LIMIT = 600
PAUSES = {"us": 0.05, "eu": 0.2, "ap": 0.2}  # seconds between two requests of one region
SECONDS = 30.0
CUT = (5.0, 15.0)
LINK = ("eu", "us")  # eu is the central region
COLOURS = {"eu": "#2563eb", "us": "#dc2626", "ap": "#059669", "all": "#111827"}

Run = dict[str, list[float]]  # by region: when something was let in


def main() -> None:
    logging.getLogger("headgate").addHandler(logging.NullHandler())
    runs = {mode: measured(mode) for mode in MODES}
    PICTURE.write_text(drawn(runs), encoding="utf-8")
    for mode, run in runs.items():
        print(f"{mode}: {', '.join(f'{name} {len(times)}' for name, times in run.items())}")
    print(f"drawn in {PICTURE}")


def measured(mode: Any) -> Run:
    rule = Rule(id=mode, quota=calm(LIMIT, "fixed_window"), regions=mode, failure_mode="closed")
    run: Run = {name: [] for name in NAMES}
    with Continents() as continents, ExitStack() as stack:
        limiters = {name: stack.enter_context(Limiter([rule], **continents.options(name))) for name in NAMES}
        for limiter in limiters.values():
            limiter.check(user="first")  # connections are there
        began = time.monotonic()

        def ask(name: str) -> None:
            while (now := time.monotonic() - began) < SECONDS:
                if limiters[name].check(user="alice").allowed:
                    run[name].append(now)
                time.sleep(max(0.0, PAUSES[name] - (time.monotonic() - began - now)))

        threads = [threading.Thread(target=ask, args=(name,)) for name in NAMES]
        for thread in threads:
            thread.start()
        time.sleep(CUT[0])
        continents.sever(LINK)
        time.sleep(CUT[1] - CUT[0])
        continents.heal()
        for thread in threads:
            thread.join()
    return run


# The picture

WIDTH, HEIGHT, MARGIN, TOP = 420, 240, 46, 40
MOST = LIMIT * 1.15


def drawn(runs: dict[str, Run]) -> str:
    width, height = 2 * (WIDTH + MARGIN) + 20, 2 * (HEIGHT + MARGIN + TOP) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for place, (mode, run) in enumerate(runs.items()):
        left = MARGIN + (place % 2) * (WIDTH + MARGIN)
        top = TOP + (place // 2) * (HEIGHT + MARGIN + TOP)
        parts += panel(mode, run, left, top)
    legend = [*((name, f"let in by {name}") for name in ("eu", "us", "ap")), ("all", "by all of them")]
    for place, (name, text) in enumerate(legend):
        x, y = MARGIN + place * 150, height - 12
        dash = ' stroke-dasharray="5 3"' if name == "all" else ""
        parts.append(f'<path d="M{x} {y - 4}h24" stroke="{COLOURS[name]}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{x + 30}" y="{y}">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def panel(mode: str, run: Run, left: float, top: float) -> list[str]:
    def x(seconds: float) -> float:
        return left + WIDTH * seconds / SECONDS

    def y(units: float) -> float:
        return top + HEIGHT * (1 - units / MOST)

    parts = [
        f'<text x="{left}" y="{top - 8}" font-weight="bold">{mode}</text>',
        f'<rect x="{x(CUT[0]):.1f}" y="{top}" width="{x(CUT[1]) - x(CUT[0]):.1f}" height="{HEIGHT}" fill="#fde68a"/>',
        f'<text x="{x(CUT[0]) + 4:.1f}" y="{top + 14}" fill="#92400e">eu and us cut apart</text>',
        f'<path d="M{left} {y(LIMIT):.1f}h{WIDTH}" stroke="#6b7280" stroke-dasharray="2 3"/>',
        f'<text x="{left + WIDTH - 4}" y="{y(LIMIT) - 4:.1f}" text-anchor="end" fill="#6b7280">limit</text>',
        f'<path d="M{left} {top}V{top + HEIGHT}H{left + WIDTH}" fill="none" stroke="#111827"/>',
    ]
    for units in range(0, LIMIT + 1, 200):
        parts.append(f'<text x="{left - 6}" y="{y(units) + 4:.1f}" text-anchor="end">{units}</text>')
    for seconds in range(0, int(SECONDS) + 1, 5):
        parts.append(f'<text x="{x(seconds):.1f}" y="{top + HEIGHT + 16}" text-anchor="middle">{seconds} s</text>')
    lines = {**run, "all": sorted(at for times in run.values() for at in times)}
    for name, times in lines.items():
        points = [(0.0, 0), *((at, count) for count, at in enumerate(times, start=1)), (SECONDS, len(times))]
        path = "".join(
            f"{'M' if place == 0 else 'L'}{x(at):.1f} {y(count):.1f}" for place, (at, count) in enumerate(points)
        )
        dash = ' stroke-dasharray="5 3"' if name == "all" else ""
        parts.append(f'<path d="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.5"{dash}/>')
    return parts


if __name__ == "__main__":
    main()
