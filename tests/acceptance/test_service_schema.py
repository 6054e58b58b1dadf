"""The whole service against the description that it serves, by schemathesis: no 5xx, no answer that is not described.

The admin's own routes have more of this in test_admin_schema; here are the data plane's, those of health, and what only
the whole service has. Importing schemathesis takes a second: it waits for the first test that needs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings

from tests.service import Service, warm_service

ROUTES = "^/(v1/|healthz|readyz|metrics|api/v1/(events|changes|explain|usage|rules:dry-run))"


class Described:
    """A service, and the operations that it says it has."""

    def __init__(self, service: Service, examples: int) -> None:
        from tests.acceptance.schema_checks import described_in_full

        self.service = service
        self.examples = examples
        self.operations = self._operations()
        self.described_in_full = self._operations(described_in_full())

    def _operations(self, config: Any = None) -> dict[str, Any]:
        import schemathesis

        schema: Any = schemathesis.openapi.from_url(f"{self.service.url}/openapi.json", config=config)
        operations = [result.ok() for result in schema.get_all_operations()]
        return {operation.label: operation for operation in operations if re.match(ROUTES, operation.path)}

    def try_out(self, label: str, mode: str) -> None:
        from tests.acceptance.schema_checks import CHECKS, REJECTION

        self._try_out(self.operations[label], mode, REJECTION if mode == "negative" else CHECKS)

    def try_acceptance(self, label: str) -> None:
        from tests.acceptance.schema_checks import ACCEPTANCE

        self._try_out(self.described_in_full[label], "positive", ACCEPTANCE)

    def _try_out(self, operation: Any, mode: str, checks: list[Any]) -> None:
        from schemathesis import GenerationMode

        from tests.acceptance.schema_checks import schemathesis_settings

        headers = self.service.headers if "/api/" in operation.label else {}

        @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
        @settings(schemathesis_settings(self.examples))
        def answers(case: Any) -> None:
            case.call_and_validate(base_url=self.service.url, headers=headers, checks=checks)

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
        described.try_out(label, "positive")
        operation = described.operations[label]
        if list(operation.query) or list(operation.body):  # a header can hold any text
            described.try_out(label, "negative")


def test_refusals_that_no_schema_says_are_of_operations_that_exist(described: Described) -> None:
    from tests.acceptance.schema_checks import REFUSED

    paths = httpx.get(f"{described.service.url}/openapi.json").json()["paths"]
    assert set(REFUSED) <= {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


def test_what_fits_the_description_is_accepted(described: Described) -> None:
    for label in described.described_in_full:
        described.try_acceptance(label)


def test_examples_of_requests_are_accepted(tmp_path: Path) -> None:
    """What the documentation of a service with the sample rules shows can be sent as it is."""
    with warm_service(tmp_path) as service, httpx.Client(base_url=service.url) as http:
        document = http.get("/openapi.json").json()
        answers = {}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if "requestBody" not in operation:
                    continue
                ((media, content),) = operation["requestBody"]["content"].items()
                name = content["schema"].get("$ref", "").rpartition("/")[2]
                example = content.get("example", document["components"]["schemas"].get(name, {}).get("example"))
                given = [one for one in operation.get("parameters", []) if "example" in one]
                parts = {one["name"]: one["example"] for one in given if one["in"] == "path"}
                query = {one["name"]: one["example"] for one in given if one["in"] == "query"}
                data = json.dumps(example) if media == "application/json" else example
                headers = {**service.headers, "Content-Type": media}
                answer = http.request(method, path.format(**parts), params=query, content=data, headers=headers)
                answers[f"{method} {path}"] = answer
    assert len(answers) > 15
    assert not {label: answer.text for label, answer in answers.items() if not answer.is_success}
