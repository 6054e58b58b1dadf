"""Method handlers of all four kinds: unary or streaming requests and responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import grpc

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic only for type checkers
Behaviour = Callable[..., Any]

# By whether requests and responses are streams: the attribute with the handler's function, and the handler's factory.
_KINDS: Final[dict[tuple[bool, bool], tuple[str, Callable[..., Handler]]]] = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


def behaviour_of(handler: Handler) -> Behaviour:
    """Return the function that handles calls."""
    behaviour: Behaviour = getattr(
        handler, _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)][0]
    )
    return behaviour


def replace_behaviour(handler: Handler, behaviour: Behaviour) -> Handler:
    """Return a copy of the handler with another function."""
    make = _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)][1]
    return make(behaviour, handler.request_deserializer, handler.response_serializer)
