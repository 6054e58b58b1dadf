"""Divide a limit among regions. Pure; whole numbers. Every region computes the same result, in any order."""

from __future__ import annotations

from collections.abc import Mapping

Weights = Mapping[str, int]


def by_weight(units: int, weights: Weights) -> dict[str, int]:
    """Divide units by weight, so that the sum is `units`. The remainder goes to the regions that rounding cut most."""
    total = sum(weights.values())
    if total == 0:
        return dict.fromkeys(weights, 0)
    shares = {name: units * weight // total for name, weight in weights.items()}
    left = units - sum(shares.values())
    cut_most = sorted(weights, key=lambda name: (-(units * weights[name] % total), name))
    for name in cut_most[:left]:
        shares[name] += 1
    return shares


def floors(limit: int, weights: Weights, part: float) -> dict[str, int]:
    """Return each region's floor: the share that it always has, without a grant.

    For each region, the floors of all others together are at most `part` of the limit, but each floor is at least 1 if
    the limit is large enough.
    """
    if len(weights) == 1:
        return dict.fromkeys(weights, limit)
    others = sum(weights.values()) - min(weights.values())
    own = {name: int(limit * part * weight / others) for name, weight in weights.items()}
    heavier = sorted(weights, key=lambda name: (-weights[name], name))
    left = limit - sum(own.values())
    for name in heavier:
        if own[name] == 0 and left > 0:
            own[name] = 1
            left -= 1
    return own


def fair(limit: int, wants: Weights, least: Weights, weights: Weights) -> dict[str, int]:
    """Divide `limit` max-min fairly by weight: a region that wants less than its part leaves the rest to the others.

    Every region gets at least its floor from `least`. The sum is at most `limit`.
    """
    shares = dict(least)
    left = limit - sum(least.values())
    hungry = {name for name in wants if wants[name] > least[name]}
    while hungry and left > 0:
        total = sum(weights[name] for name in hungry)
        content = {name for name in hungry if (wants[name] - shares[name]) * total <= left * weights[name]}
        if not content:
            more = by_weight(left, {name: weights[name] for name in hungry})
            for name in hungry:
                shares[name] += more[name]
            break
        for name in content:
            left -= wants[name] - shares[name]
            shares[name] = wants[name]
        hungry -= content
    return shares
