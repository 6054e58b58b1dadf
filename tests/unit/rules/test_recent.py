from __future__ import annotations

from headgate.rules.recent import Recent


def test_a_flood_of_values_used_once_neither_grows_it_nor_drives_out_those_in_use() -> None:
    recent: Recent[str, int] = Recent(100)
    hot = [f"hot-{number}" for number in range(10)]
    for number, key in enumerate(hot):
        recent.put(key, number)
    missed = 0
    for number in range(100_000):
        recent.put(f"flood-{number}", number)
        if number % 5 == 0:
            missed += sum(recent.get(key) is None for key in hot)
        if number % 1_000 == 0:
            assert len(recent) <= 200
    assert missed == 0


def test_what_is_no_longer_used_is_forgotten() -> None:
    recent: Recent[str, int] = Recent(10)
    recent.put("old", 1)
    for number in range(20):
        recent.put(f"new-{number}", number)
    assert recent.get("old") is None
    assert recent.get("new-19") == 19
