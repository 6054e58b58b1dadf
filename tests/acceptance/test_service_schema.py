"""The whole service against the description that it serves, by schemathesis: no 5xx, no answer that is not described.

The admin's own routes have more of this in test_admin_schema; here are the data plane's, those of health, and what only
the whole service has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis import GenerationMode

from tests.acceptance.test_admin_schema import CHECKS, schemathesis_settings
from tests.service import Service, warm_service

ROUTES = "^/(v1/|healthz|readyz|metrics|api/v1/events|api/v1/changes)"


class Described:
    """A service, and the operations that it says it has."""

    def __init__(self, service: Service, examples: int) -> None:
        self.service = service
        self.examples = examples
        schema: Any = schemathesis.openapi.from_url(f"{service.url}/openapi.json").include(path_regex=ROUTES)
        self.operations = {result.ok().label: result.ok() for result in schema.get_all_operations()}

    def try_out(self, label: str, mode: GenerationMode) -> None:
        headers = self.service.headers if "/api/" in label else {}

        @given(case=self.operations[label].as_strategy(generation_mode=mode))
        @settings(schemathesis_settings(self.examples))
        def answers(case: Any) -> None:
            case.call_and_validate(base_url=self.service.url, headers=headers, checks=CHECKS)

        answers()


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[Described]:
    directory: Path = tmp_path_factory.mktemp("schema")
    with warm_service(directory) as service:
        yield Described(service, 15 if thorough else 5)
        assert "unexpectedly" not in service.log


def test_answers_are_as_described(described: Described) -> None:
    labels = list(described.operations)
    assert {"POST /v1/check", "POST /v1/check/batch", "POST /v1/peek", "POST /v1/reset"} < set(labels)
    assert {"GET /v1/authorize", "GET /readyz", "GET /metrics", "GET /api/v1/events"} < set(labels)
    for label in labels:
        described.try_out(label, GenerationMode.POSITIVE)
        operation = described.operations[label]
        if list(operation.query) or list(operation.body):  # a header can hold any text
            described.try_out(label, GenerationMode.NEGATIVE)
