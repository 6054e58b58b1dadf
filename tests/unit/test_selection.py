"""`-k name` imports few files, and misses none that has such a test."""

from __future__ import annotations

import pytest

from tests.conftest import wanted_by


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("test_of_one_file", {"test_of_one_file"}),
        ("test_one or test_two", {"test_one", "test_two"}),
        ("sqlite", {"sqlite", "database_url", "migrated_url"}),  # a parameter of shared fixtures
        ("AsyncLimiter", {"asynclimiter", "open_limiter"}),
        ("test_the_announced_wait_is_exact", {"test_the_announced_wait_is_exact", "storecontract"}),  # of a contract
    ],
)
def test_names_lead_to_the_files_that_have_them(expression: str, names: set[str]) -> None:
    assert names <= (wanted_by(expression) or set())


@pytest.mark.parametrize("expression", ["", "not sqlite", "valkey"])
def test_any_file_may_have_what_no_name_tells(expression: str) -> None:
    assert wanted_by(expression) is None
