"""The service against its own description, by schemathesis: no 5xx, and no answer that is not described.

Importing schemathesis takes a second: it waits for the first test that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings

from headgate import AsyncLimiter, Rule
from headgate.operations import Operations
from headgate.rules.holder import Holder
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.schema import OverrideTable, RuleTable
from headgate.service.access import Access
from headgate.service.admin import admin_app, models
from headgate.service.admin.openapi import BODIES, SHOWN
from headgate.service.admin.trials import DryRunRequest, ExplainRequest
from tests.acceptance.admin import ADMIN, Served, served


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory: Path = tmp_path_factory.mktemp("admin")
    generous = AsyncLimiter([Rule(id="all", quota="1000000/second", dimension="headgate_token")])
    with served(f"sqlite:///{directory}/node.db", limits=generous) as running:
        running.http.put("/api/v1/rules/search-free", json={"limit": 5, "window": 60})
        running.http.put("/api/v1/users/alice/tier", json={"tier": "free"})
        yield running


class Fixed(NamedTuple):
    """Rules that never change."""

    holder: Holder

    def reload(self) -> Snapshot:
        return self.holder.current

    def close(self) -> None:
        pass


@cache
def description() -> dict[str, Any]:
    """The description of the API, as it is served."""
    limiter = AsyncLimiter("1/s")
    return admin_app(operations=Operations(source=Fixed(limiter.holder), limiter=limiter), access=Access()).openapi()


def described() -> Iterator[tuple[str, dict[str, Any]]]:
    """The label and the description of each operation, but for the metrics'."""
    for path, operations in description()["paths"].items():
        if path != "/metrics":
            yield from ((f"{method.upper()} {path}", operation) for method, operation in operations.items())


def cases() -> Iterator[tuple[str, str]]:
    """Each operation with requests that fit the description; and with such as do not, if there are any."""
    for label, operation in described():
        yield label, "positive"
        parameters = [parameter["in"] for parameter in operation.get("parameters", ())]
        if "query" in parameters or "requestBody" in operation:  # a path or a header can hold any text
            yield label, "negative"


@cache
def operations(config: Callable[[], Any] = lambda: None) -> dict[str, Any]:
    """What schemathesis makes of each. Of tokens it need not know: bad ones have their own test."""
    import schemathesis

    document = deepcopy(description())
    for path in document["paths"].values():
        for operation in path.values():
            del operation["security"]
    schema: Any = schemathesis.openapi.from_dict(document, config=config())
    return {result.ok().label: result.ok() for result in schema.get_all_operations()}


@pytest.mark.parametrize(("label", "mode"), list(cases()))
def test_answers_are_as_described(node: Served, label: str, mode: str, thorough: bool) -> None:
    from schemathesis import GenerationMode

    from tests.acceptance.schema_checks import CHECKS, REJECTION, schemathesis_settings

    @given(case=operations()[label].as_strategy(generation_mode=GenerationMode(mode)))
    @settings(schemathesis_settings(20 if thorough else 3))
    def answers(case: Any) -> None:
        checks = REJECTION if mode == "negative" else CHECKS
        case.call_and_validate(base_url=node.url, headers={"Authorization": f"Bearer {ADMIN}"}, checks=checks)

    answers()


@pytest.mark.parametrize("label", [label for label, _ in described()])
def test_what_fits_the_description_is_accepted(node: Served, label: str, thorough: bool) -> None:
    from schemathesis import GenerationMode

    from tests.acceptance.schema_checks import ACCEPTANCE, described_in_full, schemathesis_settings

    @given(case=operations(described_in_full)[label].as_strategy(generation_mode=GenerationMode.POSITIVE))
    @settings(schemathesis_settings(40 if thorough else 4))
    def is_accepted(case: Any) -> None:
        case.call_and_validate(base_url=node.url, headers={"Authorization": f"Bearer {ADMIN}"}, checks=ACCEPTANCE)

    is_accepted()


def test_every_operation_is_described_in_full() -> None:
    document = description()
    data_plane = ["/v1/check", "/v1/check/batch", "/v1/peek", "/v1/reset", "/v1/authorize"]
    for path in (*data_plane, "/healthz", "/readyz", "/metrics"):
        assert path in document["paths"], path
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    names = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            names.append(operation["operationId"])
            assert operation["summary"], where
            assert len(operation["tags"]) == 1, where
            assert operation["tags"][0] in {tag["name"] for tag in document["tags"]}, where
            if path.startswith("/api/v1/"):
                assert {"401", "403", "422", "429", "503"} <= set(operation["responses"]), where
                assert operation["security"] == [{"bearer": []}], where
            for content in contents(operation):
                for media in content.values():
                    assert has_example(media, document), where
    assert len(set(names)) == len(names)


def contents(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The bodies of an operation: of its request, and of answers that are no problem."""
    if "requestBody" in operation:
        yield operation["requestBody"]["content"]
    for status, response in operation["responses"].items():
        if status.startswith("2") and "content" in response:
            yield response["content"]


def has_example(media: dict[str, Any], document: dict[str, Any]) -> bool:
    name = media["schema"].get("$ref", "").rpartition("/")[2]
    return "example" in media or "example" in document["components"]["schemas"].get(name, {})


def test_examples_are_what_they_are_examples_of() -> None:
    schemas = description()["components"]["schemas"]
    without = (models.Problem, ExplainRequest, DryRunRequest)  # they have no example of their own
    shown = (*SHOWN, *(model for model in BODIES if model not in without))
    for model in shown:
        model.model_validate(schemas[model.__name__]["example"], strict=False)


def test_a_rule_is_described_with_the_fields_that_it_has() -> None:
    assert set(models.Rule.model_fields) - {"version"} == set(RuleTable.model_fields)
    assert set(models.Override.model_fields) == set(OverrideTable.model_fields)
