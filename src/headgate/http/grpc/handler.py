"""Handlers of methods, of all four kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import grpc

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # which is generic to type checkers alone
Behaviour = Callable[..., Any]

# By whether requests and responses are streams: where a handler keeps its function, and what makes a handler of one.
_KINDS: Final[dict[tuple[bool, bool], tuple[str, Callable[..., Handler]]]] = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


def behaviour_of(handler: Handler) -> Behaviour:
    """The function that does the work."""
    behaviour: Behaviour = getattr(
        handler, _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)][0]
    )
    return behaviour


def replaced(handler: Handler, behaviour: Behaviour) -> Handler:
    """The handler, with another function."""
    make = _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)][1]
    return make(behaviour, handler.request_deserializer, handler.response_serializer)
