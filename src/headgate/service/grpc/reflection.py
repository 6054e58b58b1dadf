"""Server reflection: describes the services and messages to grpcurl and similar tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from headgate.service.grpc.status import Code
from headgate.service.protos import reflection_pb2 as messages
from headgate.service.protos.pool import POOL
from headgate.service.rpc.method import Flow, Method

# The two differ only in their name.
NAMES: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

Request, Response = messages.ServerReflectionRequest, messages.ServerReflectionResponse


class Reflection:
    """One version of the reflection service. Callers need the permission for checks."""

    protocol: Final = None

    def __init__(self, name: str, services: Sequence[str]) -> None:
        self.name = name
        self._services = sorted((*services, NAMES[0]))
        self.methods: Mapping[str, Method | Flow] = {"ServerReflectionInfo": Flow(Request, self.answers)}

    async def answers(
        self, requests: AsyncIterator[messages.ServerReflectionRequest]
    ) -> AsyncGenerator[messages.ServerReflectionResponse]:
        """Yield an answer to each request."""
        async for request in requests:
            try:
                answer = self._answer(request)
            except KeyError:
                answer = _error(Code.NOT_FOUND, "there is nothing of that name here")
            answer.valid_host = request.host
            answer.original_request.CopyFrom(request)
            yield answer

    def _answer(self, request: messages.ServerReflectionRequest) -> messages.ServerReflectionResponse:
        kind = request.WhichOneof("message_request")
        pool: Any = POOL
        if kind == "list_services":
            listed = [messages.ServiceResponse(name=name) for name in self._services]
            return Response(list_services_response=messages.ListServiceResponse(service=listed))
        if kind == "file_by_filename":
            return _files(pool.FindFileByName(request.file_by_filename))
        if kind == "file_containing_symbol":
            return _files(pool.FindFileContainingSymbol(request.file_containing_symbol))
        if kind == "file_containing_extension":
            extended = pool.FindMessageTypeByName(request.file_containing_extension.containing_type)
            number = request.file_containing_extension.extension_number
            return _files(pool.FindExtensionByNumber(extended, number).file)
        if kind == "all_extension_numbers_of_type":
            extended = pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
            numbers = sorted(extension.number for extension in pool.FindAllExtensions(extended))
            found = messages.ExtensionNumberResponse(base_type_name=extended.full_name, extension_number=numbers)
            return Response(all_extension_numbers_response=found)
        return _error(Code.INVALID_ARGUMENT, "the request asks for nothing that is known")


def _error(code: Code, message: str) -> messages.ServerReflectionResponse:
    return Response(error_response=messages.ErrorResponse(error_code=code, error_message=message))


def _files(file: Any) -> messages.ServerReflectionResponse:
    """Return a file and all that it imports."""
    found: dict[str, bytes] = {}

    def collect(one: Any) -> None:
        if one.name not in found:
            described = FileDescriptorProto()
            one.CopyToProto(described)
            found[one.name] = described.SerializeToString()
            for needed in one.dependencies:
                collect(needed)

    collect(file)
    return Response(
        file_descriptor_response=messages.FileDescriptorResponse(file_descriptor_proto=list(found.values()))
    )
