"""Server reflection: tells grpcurl and the like which services and messages there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from headgate.service.access import Access
from headgate.service.grpc.calls import guarded
from headgate.service.protos.pool import POOL

HEALTH: Final = "grpc.health.v1.Health"
# The two are the same but for their name.
NAMES: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

for _module in (health_pb2, reflection_pb2):
    POOL.AddSerializedFile(_module.DESCRIPTOR.serialized_pb)


def reflection_handlers(services: Sequence[str], access: Access) -> list[grpc.GenericRpcHandler]:
    """The handlers of reflection, which needs what a check needs."""
    servicer: Any = reflection.aio.ReflectionServicer((*services, HEALTH, *NAMES[1:]), pool=POOL)
    name = "ServerReflectionInfo"
    method = guarded(name, servicer.ServerReflectionInfo, reflection_pb2.ServerReflectionRequest, access)
    return [grpc.method_handlers_generic_handler(service, {name: method}) for service in NAMES]
