from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Dimension(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIMENSION_UNSPECIFIED: _ClassVar[Dimension]
    USER: _ClassVar[Dimension]
    IP: _ClassVar[Dimension]
    API_KEY: _ClassVar[Dimension]
    TENANT: _ClassVar[Dimension]
    GLOBAL: _ClassVar[Dimension]
DIMENSION_UNSPECIFIED: Dimension
USER: Dimension
IP: Dimension
API_KEY: Dimension
TENANT: Dimension
GLOBAL: Dimension

class CheckRequest(_message.Message):
    __slots__ = ("identifier", "dimension", "endpoint", "cost", "timestamp", "facts", "tier", "idempotency_key", "method", "costs")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class CostsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    identifier: str
    dimension: Dimension
    endpoint: str
    cost: int
    timestamp: int
    facts: _containers.ScalarMap[str, str]
    tier: str
    idempotency_key: str
    method: str
    costs: _containers.ScalarMap[str, int]
    def __init__(self, identifier: _Optional[str] = ..., dimension: _Optional[_Union[Dimension, str]] = ..., endpoint: _Optional[str] = ..., cost: _Optional[int] = ..., timestamp: _Optional[int] = ..., facts: _Optional[_Mapping[str, str]] = ..., tier: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., method: _Optional[str] = ..., costs: _Optional[_Mapping[str, int]] = ...) -> None: ...

class CheckResponse(_message.Message):
    __slots__ = ("allowed", "current_count", "limit", "remaining", "reset_at", "retry_after", "rule", "state", "reason", "limits", "decision_id")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    CURRENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    RESET_AT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    current_count: int
    limit: int
    remaining: int
    reset_at: int
    retry_after: int
    rule: str
    state: str
    reason: str
    limits: _containers.RepeatedCompositeFieldContainer[LimitStatus]
    decision_id: str
    def __init__(self, allowed: _Optional[bool] = ..., current_count: _Optional[int] = ..., limit: _Optional[int] = ..., remaining: _Optional[int] = ..., reset_at: _Optional[int] = ..., retry_after: _Optional[int] = ..., rule: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., limits: _Optional[_Iterable[_Union[LimitStatus, _Mapping]]] = ..., decision_id: _Optional[str] = ...) -> None: ...

class AcquireResponse(_message.Message):
    __slots__ = ("decision", "slot", "ttl")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    decision: CheckResponse
    slot: str
    ttl: float
    def __init__(self, decision: _Optional[_Union[CheckResponse, _Mapping]] = ..., slot: _Optional[str] = ..., ttl: _Optional[float] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("slot",)
    SLOT_FIELD_NUMBER: _ClassVar[int]
    slot: str
    def __init__(self, slot: _Optional[str] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: bool
    def __init__(self, released: _Optional[bool] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("slot",)
    SLOT_FIELD_NUMBER: _ClassVar[int]
    slot: str
    def __init__(self, slot: _Optional[str] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("renewed",)
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    renewed: bool
    def __init__(self, renewed: _Optional[bool] = ...) -> None: ...

class LimitStatus(_message.Message):
    __slots__ = ("rule", "allowed", "enforced", "limit", "remaining", "reset_at", "retry_after", "quota", "unit")
    RULE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    RESET_AT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    rule: str
    allowed: bool
    enforced: bool
    limit: int
    remaining: int
    reset_at: int
    retry_after: int
    quota: str
    unit: str
    def __init__(self, rule: _Optional[str] = ..., allowed: _Optional[bool] = ..., enforced: _Optional[bool] = ..., limit: _Optional[int] = ..., remaining: _Optional[int] = ..., reset_at: _Optional[int] = ..., retry_after: _Optional[int] = ..., quota: _Optional[str] = ..., unit: _Optional[str] = ...) -> None: ...

class CheckBatchRequest(_message.Message):
    __slots__ = ("checks",)
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    checks: _containers.RepeatedCompositeFieldContainer[CheckRequest]
    def __init__(self, checks: _Optional[_Iterable[_Union[CheckRequest, _Mapping]]] = ...) -> None: ...

class CheckBatchResponse(_message.Message):
    __slots__ = ("responses",)
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[CheckResponse]
    def __init__(self, responses: _Optional[_Iterable[_Union[CheckResponse, _Mapping]]] = ...) -> None: ...

class QuotaRequest(_message.Message):
    __slots__ = ("identifier", "dimension", "endpoint", "facts", "tier", "method", "cost", "costs")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class CostsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    identifier: str
    dimension: Dimension
    endpoint: str
    facts: _containers.ScalarMap[str, str]
    tier: str
    method: str
    cost: int
    costs: _containers.ScalarMap[str, int]
    def __init__(self, identifier: _Optional[str] = ..., dimension: _Optional[_Union[Dimension, str]] = ..., endpoint: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ..., tier: _Optional[str] = ..., method: _Optional[str] = ..., cost: _Optional[int] = ..., costs: _Optional[_Mapping[str, int]] = ...) -> None: ...

class QuotaResponse(_message.Message):
    __slots__ = ("allowed", "current_count", "limit", "remaining", "reset_at", "retry_after", "rule", "state", "reason", "limits")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    CURRENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    RESET_AT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    current_count: int
    limit: int
    remaining: int
    reset_at: int
    retry_after: int
    rule: str
    state: str
    reason: str
    limits: _containers.RepeatedCompositeFieldContainer[LimitStatus]
    def __init__(self, allowed: _Optional[bool] = ..., current_count: _Optional[int] = ..., limit: _Optional[int] = ..., remaining: _Optional[int] = ..., reset_at: _Optional[int] = ..., retry_after: _Optional[int] = ..., rule: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., limits: _Optional[_Iterable[_Union[LimitStatus, _Mapping]]] = ...) -> None: ...

class ResetRequest(_message.Message):
    __slots__ = ("identifier", "dimension", "endpoint", "facts", "tier", "method")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    identifier: str
    dimension: Dimension
    endpoint: str
    facts: _containers.ScalarMap[str, str]
    tier: str
    method: str
    def __init__(self, identifier: _Optional[str] = ..., dimension: _Optional[_Union[Dimension, str]] = ..., endpoint: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ..., tier: _Optional[str] = ..., method: _Optional[str] = ...) -> None: ...

class ResetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
