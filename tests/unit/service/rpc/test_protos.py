"""The generated messages: up to date, and at home with others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from headgate.service.protos import rate_limiter_pb2, rls_pb2
from tests.webserver import ROOT

PROTOS = ROOT / "src/headgate/service/protos"


def test_they_are_what_the_script_makes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts/protos", tmp_path], check=True)
    made = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert made == {file.name: file.read_text(encoding="utf-8") for file in PROTOS.glob("*_pb2.py*")}
    assert len(made) == 8


def test_another_package_may_bring_envoys_messages_too() -> None:
    file = FileDescriptorProto(name="envoy/service/ratelimit/v3/rls.proto", package="envoy.service.ratelimit.v3")
    file.message_type.add(name="RateLimitRequest")
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())  # raises if the name is taken


def test_the_numbers_that_callers_rely_on() -> None:
    numbers = {field.name: field.number for field in rate_limiter_pb2.CheckRequest.DESCRIPTOR.fields}
    assert numbers == {
        **{"identifier": 1, "dimension": 2, "endpoint": 3, "cost": 4, "timestamp": 5, "facts": 6, "tier": 7},
        **{"idempotency_key": 8, "method": 9, "costs": 10},
    }
    numbers = {field.name: field.number for field in rate_limiter_pb2.CheckResponse.DESCRIPTOR.fields}
    assert numbers == {
        **{"allowed": 1, "current_count": 2, "limit": 3, "remaining": 4, "reset_at": 5, "retry_after": 6, "rule": 7},
        **{"state": 8, "reason": 9, "limits": 10, "decision_id": 11},
    }
    assert dict(rate_limiter_pb2.Dimension.items()) == {
        **{"DIMENSION_UNSPECIFIED": 0, "USER": 1, "IP": 2, "API_KEY": 3, "TENANT": 4, "GLOBAL": 5},
    }
    statuses = {field.name: field.number for field in rls_pb2.RateLimitResponse.DescriptorStatus.DESCRIPTOR.fields}
    assert statuses == {"code": 1, "current_limit": 2, "limit_remaining": 3, "duration_until_reset": 4}


def test_check_and_quota_responses_have_the_same_figures() -> None:
    """As one form on the wire is written for both. A question is not recorded: it has no id."""
    check, quota = (
        {field.number: (field.name, field.type) for field in message.DESCRIPTOR.fields}
        for message in (rate_limiter_pb2.CheckResponse, rate_limiter_pb2.QuotaResponse)
    )
    assert check.pop(11)[0] == "decision_id"
    assert check == quota
