"""Rule: a Quota plus who and what it applies to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from headgate.core.key import space
from headgate.core.quota import MAX_INT, Quota
from headgate.errors import InvalidRule

Action = Literal["reject", "throttle", "log_only"]
FailureMode = Literal["open", "closed", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Limits each subject of a dimension to a quota.

    `dimension` names the fact whose value is the subject (`user`, `ip`, `api_key`, `tenant`, or any other), several
    joined by `+` (`user+endpoint`), or `global`: one subject for all. A rule applies to requests that have all
    of its dimension's facts. `cost` multiplies the cost of a request. `log_only` makes it a shadow, which never
    refuses. `failure_mode` decides when the store cannot; None leaves it to the limiter.
    """

    id: str
    quota: Quota
    dimension: str = "user"
    cost: int = 1
    action: Action = "reject"
    failure_mode: FailureMode | None = None
    enabled: bool = True
    space: str = field(init=False, repr=False, compare=False)
    facts: tuple[str, ...] = field(init=False, repr=False, compare=False)  # whose values make the subject

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise InvalidRule(f"id: must be a text that is not empty, got {self.id!r}")
        if not isinstance(self.quota, Quota):
            raise InvalidRule(f"rule {self.id!r}: quota: must be a Quota, got {self.quota!r}")
        if isinstance(self.cost, bool) or not isinstance(self.cost, int) or not 1 <= self.cost <= MAX_INT:
            raise InvalidRule(f"rule {self.id!r}: cost: must be a whole number from 1 to 2^53-1, got {self.cost!r}")
        for name, value, choices in (
            ("action", self.action, get_args(Action)),
            ("failure_mode", self.failure_mode, (*get_args(FailureMode), None)),
        ):
            if value not in choices:
                raise InvalidRule(
                    f"rule {self.id!r}: {name}: must be one of {', '.join(map(str, choices))}, got {value!r}"
                )
        facts = () if self.dimension == "global" else tuple(self.dimension.split("+"))
        if not all(facts) or len(set(facts)) != len(facts):
            raise InvalidRule(
                f"rule {self.id!r}: dimension: cannot read {self.dimension!r}; write 'user' or 'user+endpoint'"
            )
        object.__setattr__(self, "facts", facts)
        object.__setattr__(self, "space", space(self.dimension, self.id, self.quota.algorithm))
