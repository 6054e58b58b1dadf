"""Where the descriptors of our messages are: in a pool of their own.

protobuf's own pool is shared by all packages of a process, and two that both bring Envoy's messages could not be
imported together.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import duration_pb2, struct_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

POOL: Final = DescriptorPool()
for _module in (duration_pb2, struct_pb2, wrappers_pb2):  # which ours import
    POOL.AddSerializedFile(_module.DESCRIPTOR.serialized_pb)


def load(module: dict[str, Any], serialized: bytes) -> None:
    """Give a module the messages and enums of a file, under their names."""
    file: Any = POOL.AddSerializedFile(serialized)
    module["DESCRIPTOR"] = file
    for name, descriptor in file.message_types_by_name.items():
        module[name] = GetMessageClass(descriptor)
    for name, descriptor in file.enum_types_by_name.items():
        module[name] = EnumTypeWrapper(descriptor)
        module |= {value.name: value.number for value in descriptor.values}
