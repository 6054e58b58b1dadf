"""How schemathesis checks the service against its description: what it checks, and which refusals no schema can say."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ACCEPTANCE = [*CHECKS, positive_data_acceptance]  # for requests of `described_in_full`

REJECTION = [*CHECKS, negative_data_rejection]  # for requests that do not fit the description

ACCEPTED = ["2xx", "304", "404", "409", "429", "503"]  # what exists, and what there is room for, no schema says
# Statuses of requests that fit the description, and are refused for what they mean.
REFUSED = {
    "POST /api/v1/rules": ["422"],  # fields of a rule depend on one another
    "PUT /api/v1/rules/{rule_id}": ["412", "422"],
    "DELETE /api/v1/rules/{rule_id}": ["412", "422"],
    "PUT /api/v1/ruleset": ["412", "422"],  # the body is TOML
    "POST /api/v1/exemptions": ["422"],  # of type ip, the value is an address or a network
    "DELETE /api/v1/exemptions": ["422"],
    "POST /api/v1/users/{user_id}/override": ["422"],  # the rule must exist and be one that the figures fit
    "PUT /api/v1/users:batch": ["422"],
    "POST /api/v1/tokens": ["422"],  # a text of a duration is from a minute to ten years
    "POST /api/v1/explain": ["400"],  # facts must be declared, as those of checks
    "POST /api/v1/rules:dry-run": ["400", "422"],
    "GET /api/v1/usage": ["422"],  # at most 10,000 points, from a time until a later one
    "POST /api/v1/changes/{change_id}/revert": ["422"],  # what was before must still fit the rest
    # Facts other than the well-known ones must be declared by the rules, and names of units are names.
    "POST /v1/check": ["400"],
    "POST /v1/check/batch": ["400"],
    "POST /v1/peek": ["400"],
    "POST /v1/reset": ["400"],
    "POST /v1/acquire": ["400"],
    "POST /v1/release": ["400"],  # a slot is what acquire said
    "POST /v1/renew": ["400"],
}


@schemathesis.serializer("application/toml")
def toml(_: Any, value: Any) -> bytes:
    return str(value).encode(errors="replace")


def described_in_full() -> Any:
    """The configuration for requests that fit the description in all that it can say.

    Their texts are ASCII without NUL: that ids have printable characters alone is what no pattern can say of all of
    Unicode, and NUL is what databases cannot keep.
    """
    accepts = [
        {
            "include-name": label,
            "checks": {"positive_data_acceptance": {"expected-statuses": [*ACCEPTED, *statuses]}},
        }
        for label, statuses in REFUSED.items()
    ]
    return schemathesis.Config.from_dict(
        {
            "checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}},
            "generation": {"codec": "ascii", "allow-x00": False},
            "operations": accepts,
        }
    )


def schemathesis_settings(max_examples: int) -> settings:
    """Settings for requests that schemathesis makes up: the same ones in every run."""
    return settings(
        max_examples=max_examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
