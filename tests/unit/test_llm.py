"""What calls of language models cost, by the records that OpenAI and Anthropic send."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate import InvalidCheck
from headgate.llm import Models, Price, Usage

OPENAI = {"prompt_tokens": 1_000, "completion_tokens": 200, "prompt_tokens_details": {"cached_tokens": 600}}
RESPONSES = {"input_tokens": 1_000, "output_tokens": 200, "input_tokens_details": {"cached_tokens": 600}}
ANTHROPIC = {
    **{"input_tokens": 400, "output_tokens": 200},
    **{"cache_read_input_tokens": 600, "cache_creation_input_tokens": 50},
}
MODELS = Models(
    {
        "gpt-4o": Price(input=2.5, output=10, cached_input=1.25),
        "gpt-4o-mini": Price(input=0.15, output=0.6),
        "claude": Price(input=3, output=15, cached_input=0.3, cache_write=3.75),
    },
    weights={"gpt-4o-mini": 0.1},
    cached_weight=0.5,
)


@pytest.mark.parametrize(
    ("record", "usage"),
    [
        (OPENAI, Usage(400, 600, 0, 200)),
        (RESPONSES, Usage(400, 600, 0, 200)),
        (ANTHROPIC, Usage(400, 600, 50, 200)),
        ({"prompt_tokens": 7}, Usage(7)),
        (SimpleNamespace(input_tokens=3, output_tokens=4), Usage(3, 0, 0, 4)),
        ({"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": None}, Usage(5, 0, 0, 1)),
    ],
)
def test_usage_records_are_read(record: Any, usage: Usage) -> None:
    assert Usage.of(record) == usage


@pytest.mark.parametrize("record", [{}, None, {"tokens": 5}, {"input_tokens": True}])
def test_what_is_no_usage_record_is_told(record: Any) -> None:
    with pytest.raises(InvalidCheck, match="usage: has neither input_tokens nor prompt_tokens"):
        Usage.of(record)


@pytest.mark.parametrize(
    ("record", "model", "cost"),
    [
        (OPENAI, "gpt-4o-2024-08-06", {"tokens": 900, "usd_micros": 3_750}),  # 1000 + 750 + 2000
        (OPENAI, "gpt-4o-mini", {"tokens": 90, "usd_micros": 270}),  # the longest name that fits
        (ANTHROPIC, "claude-sonnet", {"tokens": 950, "usd_micros": 4_568}),  # 1200 + 180 + 187.5 + 3000, rounded up
    ],
)
def test_costs_by_model_with_cached_input(record: Any, model: str, cost: dict[str, int]) -> None:
    assert MODELS.cost(record, model) == cost


def test_a_model_without_a_price_is_told_unless_there_is_one_for_all_others() -> None:
    with pytest.raises(InvalidCheck, match="no price for 'llama'"):
        MODELS.cost(OPENAI, "llama")
    assert Models({"*": Price(1, 1)}).cost({"prompt_tokens": 2}, "llama")["usd_micros"] == 2
    assert Models().cost(OPENAI, "llama") == {"tokens": 1_200}


@pytest.mark.parametrize(
    ("request_", "usage"),
    [
        ({"messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 50}, Usage(104, 0, 0, 50)),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 9}]}]}, Usage(7, 0, 0, 1_024)),
        ({"system": "x" * 40, "messages": [], "max_tokens": 5}, Usage(10, 0, 0, 5)),
        ({"input": "x" * 40, "max_output_tokens": 5}, Usage(14, 0, 0, 5)),
        ({"messages": [], "max_completion_tokens": 10, "n": 3}, Usage(0, 0, 0, 30)),
    ],
)
def test_estimates_from_requests(request_: dict[str, Any], usage: Usage) -> None:
    assert MODELS.estimated_usage(request_) == usage


@pytest.mark.parametrize("value", [-5_000, 0, True, False, None, "abc", "", "-5", "²", [1], {}, float("nan"), 1e999])
@pytest.mark.parametrize("name", ["max_completion_tokens", "max_output_tokens", "max_tokens", "n"])
def test_a_value_that_is_no_count_is_ignored_and_never_lowers_an_estimate(name: str, value: Any) -> None:
    request = {"model": "gpt-4o", "messages": [{"role": "user", "content": "x" * 400}]}
    assert MODELS.estimate({**request, name: value}) == MODELS.estimate(request)


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"max_tokens": "50", "n": "2"}, 100),  # as some servers read them
        ({"max_tokens": 50.0, "n": 1.5}, 100),
        ({"max_completion_tokens": 1, "max_tokens": 4_000}, 4_000),  # it is not known which of them the server reads
        ({"max_completion_tokens": -1, "max_tokens": 40}, 40),
    ],
)
def test_the_safest_reading_of_a_clients_limits_counts(fields: dict[str, Any], output: int) -> None:
    assert MODELS.estimated_usage({"messages": [], **fields}).output == output


@pytest.mark.parametrize("fields", [{"max_tokens": 10**30}, {"max_tokens": "9" * 5_000}, {"n": 10**30}, {"n": 1e300}])
def test_an_estimate_is_at_most_what_a_check_accepts(fields: dict[str, Any]) -> None:
    request = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], **fields}
    assert MODELS.estimate(request) == {"tokens": 2**53 - 1, "usd_micros": 2**53 - 1}


def test_a_deeply_nested_body_is_estimated() -> None:
    content: Any = "x" * 400
    for _ in range(5_000):
        content = [content]
    assert MODELS.estimated_usage({"messages": [{"role": "user", "content": content}]}).input == 104


def test_a_model_of_weight_0_is_free() -> None:
    models = Models({"*": Price(1, 1)}, weights={"free": 0, "*": 2})
    assert models.cost({"prompt_tokens": 10}, "free") == {"tokens": 0, "usd_micros": 10}
    assert models.cost({"prompt_tokens": 10}, "other")["tokens"] == 20


def test_a_stream_of_openai_is_counted_until_its_usage_comes() -> None:
    call = MODELS.stream({"model": "gpt-4o", "messages": [{"role": "user", "content": "x" * 40}]})
    assert call.usage == Usage(14)
    for text in ("hello ", "world!"):
        call.add({"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]})
    assert call.usage == Usage(14, 0, 0, 3)
    call.add({"choices": [], "usage": OPENAI})
    assert call.usage == Usage(400, 600, 0, 200)
    assert call.cost() == MODELS.cost(OPENAI, "gpt-4o")


def test_a_stream_of_anthropic_tells_input_first_and_output_last() -> None:
    call = MODELS.stream({"model": "claude-sonnet", "messages": []})
    call.add({"type": "message_start", "message": {"usage": {**ANTHROPIC, "output_tokens": 1}}})
    call.add({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x" * 40}})
    assert call.usage == Usage(400, 600, 50, 10)
    call.add({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 12}})
    assert call.usage == Usage(400, 600, 50, 12)
