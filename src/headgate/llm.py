"""The cost of language model calls: estimated from the request, and known from the response's `usage`.

    models = Models({"gpt-4o": Price(input=2.5, output=10, cached_input=1.25)})
    reservation = limiter.reserve(user="alice", cost={"requests": 1, **models.estimate(request)})
    …
    reservation.settle(models.cost(response["usage"], response["model"]))

Requests and responses are those of OpenAI's and Anthropic's APIs, as dictionaries or as objects of their libraries.
This module imports neither, and knows no prices: they change, and you know yours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from math import ceil, isfinite
from typing import Any, Final, NamedTuple

from headgate.core.quota import MAX_INT
from headgate.errors import InvalidCheck

ANY: Final = "*"  # the name for the price or weight of all other models
CHARACTERS_PER_TOKEN: Final = 4
TOKENS_PER_MESSAGE: Final = 4  # of a message besides its text
_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")  # fields that limit a request's output
_NO_TEXT: Final = frozenset({"type", "role", "image_url", "data", "id"})
_DIGITS: Final = 16  # of 2^53-1


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model in USD per million tokens, that is in millionths of a dollar per token.

    The prices of cached input, and of input written to a cache, default to the price of input.
    """

    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None

    def usd_micros(self, usage: Usage) -> int:
        """Return the cost of a call in millionths of a dollar, rounded up."""
        parts = (
            (usage.input, self.input),
            (usage.cached, self.input if self.cached_input is None else self.cached_input),
            (usage.written, self.input if self.cache_write is None else self.cache_write),
            (usage.output, self.output),
        )
        total = sum(tokens * Decimal(str(price)) for tokens, price in parts)
        return int(Decimal(total).to_integral_value(ROUND_CEILING))


class Usage(NamedTuple):
    """The tokens of a call; each counts in one field only."""

    input: int = 0  # neither read from a cache nor written to one
    cached: int = 0  # input read from a cache
    written: int = 0  # input written to a cache
    output: int = 0

    @classmethod
    def of(cls, record: Any) -> Usage:
        """Read a `usage` record of OpenAI (chat completions, responses) or Anthropic. Raises `InvalidCheck`."""
        whole = _number(record, "input_tokens", "prompt_tokens")
        output = _number(record, "output_tokens", "completion_tokens") or 0
        if whole is None:
            raise InvalidCheck(f"usage: has neither input_tokens nor prompt_tokens: {record!r}")
        cached, written = _number(record, "cache_read_input_tokens"), _number(record, "cache_creation_input_tokens")
        if cached is not None or written is not None:  # Anthropic's input_tokens do not include these
            return cls(whole, cached or 0, written or 0, output)
        details = _field(record, "prompt_tokens_details") or _field(record, "input_tokens_details")
        cached = min(whole, _number(details, "cached_tokens") or 0)
        return cls(whole - cached, cached, 0, output)


class Models:
    """Computes the cost of calls in the units `tokens` and, if there are prices, `usd_micros`.

    `prices` and `weights` are by model. A name also matches models that begin with it (`gpt-4o` matches
    `gpt-4o-2024-08-06`); the longest match wins, and `*` matches all others. A model's weight multiplies its tokens,
    and `cached_weight` the tokens of cached input: 0.1 charges a tenth of them. Output that a request does not limit is
    estimated at `default_output` tokens.
    """

    def __init__(
        self,
        prices: Mapping[str, Price] | None = None,
        *,
        weights: Mapping[str, float] | None = None,
        cached_weight: float = 1.0,
        default_output: int = 1_024,
    ) -> None:
        self._prices = dict(prices or {})
        self._weights = dict(weights or {})
        self._cached_weight = cached_weight
        self._default_output = default_output

    def estimate(self, request: Mapping[str, Any]) -> dict[str, int]:
        """Estimate the cost of a request: its input, at four characters a token, and all of the output that it allows.

        Reads `messages`, `system`, `input`, `prompt`, `instructions` and `tools`; and for the output
        `max_completion_tokens`, `max_output_tokens` or `max_tokens`, times `n`. If there are several limits, the
        largest counts.

        The request may come from a client. A limit or `n` that is not a number of 1 or more is ignored, as if it was
        not given: it never lowers the estimate, and never raises. Amounts are at most 2^53-1, the most that a check
        accepts. Raises `InvalidCheck` if there are prices, but none for the model.
        """
        return self._cost(self.estimated_usage(request), str(request.get("model", "")))

    def estimated_usage(self, request: Mapping[str, Any]) -> Usage:
        """Return the tokens that `estimate` assumes."""
        parts = [request.get(name) for name in ("messages", "system", "input", "prompt", "instructions", "tools")]
        characters = sum(len(text) for part in parts for text in _texts(part))
        messages = request.get("messages")
        overhead = TOKENS_PER_MESSAGE * (len(messages) if isinstance(messages, list) else 1)
        limits = [limit for name in _LIMITS if (limit := _count(request.get(name))) is not None]
        output = (max(limits) if limits else self._default_output) * (_count(request.get("n")) or 1)
        return Usage(input=-(characters // -CHARACTERS_PER_TOKEN) + overhead, output=min(output, MAX_INT))

    def cost(self, usage: Any, model: str = "") -> dict[str, int]:
        """Return the cost of a call from its `usage` record, to settle a reservation. Raises `InvalidCheck`."""
        return self._cost(usage if isinstance(usage, Usage) else Usage.of(usage), model)

    def stream(self, request: Mapping[str, Any]) -> StreamedCall:
        """Return a counter for the tokens of a streamed response."""
        return StreamedCall(self, request)

    def _cost(self, usage: Usage, model: str) -> dict[str, int]:
        factor = _of_model(self._weights, model)
        weight = Decimal("1" if factor is None else str(factor))  # 0 is a weight, too: such a model is free
        counted = usage.input + usage.written + usage.output + usage.cached * Decimal(str(self._cached_weight))
        cost = {"tokens": min(MAX_INT, int((weight * counted).to_integral_value(ROUND_CEILING)))}
        if self._prices:
            price = _of_model(self._prices, model)
            if price is None:
                raise InvalidCheck(f"model: no price for {model!r}; add one, or a default price as {ANY!r}")
            cost["usd_micros"] = min(MAX_INT, price.usd_micros(usage))
        return cost


class StreamedCall:
    """A streamed response: add each of its events, and settle with `cost()` however it ends.

    Until an event reports the usage, the output is what has arrived so far, at four characters a token, and the input
    is the estimate. So a stream that breaks is charged for what arrived.
    """

    def __init__(self, models: Models, request: Mapping[str, Any]) -> None:
        self._models = models
        self._model = str(request.get("model", ""))
        self._estimate = models.estimated_usage(request)
        self._characters = 0
        self._input: Usage | None = None  # from Anthropic's first event
        self._usage: Usage | None = None

    def add(self, event: Any) -> None:
        """Add an event: OpenAI's chunk or Anthropic's event, as a dictionary or an object."""
        message = _field(event, "message") or _field(event, "response")
        usage_fields = _field(event, "usage") or _field(message, "usage")
        if usage_fields is not None and _number(usage_fields, "input_tokens", "prompt_tokens") is not None:
            usage = Usage.of(usage_fields)
            if _field(event, "type") == "message_start":
                self._input = usage
            else:
                self._usage = usage
        elif usage_fields is not None and self._input is not None:  # Anthropic's last event has only the output
            self._usage = self._input._replace(output=_number(usage_fields, "output_tokens") or 0)
        for choice in _field(event, "choices") or ():
            self._characters += sum(len(text) for text in _texts(_field(choice, "delta")))
        delta = _field(event, "delta")
        self._characters += sum(len(text) for text in _texts(delta))

    @property
    def usage(self) -> Usage:
        """The tokens so far."""
        if self._usage is not None:
            return self._usage
        output = -(self._characters // -CHARACTERS_PER_TOKEN)
        return (self._input or self._estimate)._replace(output=output)

    def cost(self) -> dict[str, int]:
        """Return the cost of the call so far."""
        return self._models.cost(self.usage, self._model)


def _of_model(table: Mapping[str, Any], model: str) -> Any:
    names = [name for name in table if model.startswith(name)]
    return table[max(names, key=len)] if names else table.get(ANY)


def _field(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)


def _number(record: Any, *names: str) -> int | None:
    for name in names:
        value = None if record is None else _field(record, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return max(0, value)
    return None


def _count(value: Any) -> int | None:
    """Return a number of 1 or more that a client sent, rounded up and at most 2^53-1; None if it is no such number.

    Some servers accept `"50"` and `50.0`, so these count, too.
    """
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value) if len(value) <= _DIGITS else MAX_INT
    elif isinstance(value, float) and isfinite(value):
        value = ceil(value)
    return min(value, MAX_INT) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _texts(part: Any) -> Iterable[str]:
    """Yield all texts of a part of a request or response, except types, roles, ids and binary data.

    Not recursive: a client may nest a body deeper than Python's stack.
    """
    parts = [part]
    while parts:
        one = parts.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            parts.extend(value for name, value in one.items() if name not in _NO_TEXT)
        elif isinstance(one, list | tuple):
            parts.extend(one)
        elif one is not None and hasattr(one, "model_dump"):  # an object of the API's library
            parts.append(one.model_dump())
