"""The messages of proto/grpc/reflection/v1/reflection.proto. Made by scripts/protos: do not edit."""

from headgate.service.protos.pool import load

load(
    globals(),
    b'\n#grpc/reflection/v1/reflection.proto\x12\x12grpc.reflection.v1"\xf3\x02\n\x17Se'
    b'rverReflectionRequest\x12\x12\n\x04host\x18\x01 \x01(\tR\x04host\x12*\n\x10file_by_filename\x18\x03 '
    b'\x01(\tH\x00R\x0efileByFilename\x126\n\x16file_containing_symbol\x18\x04 \x01(\tH\x00R\x14fileCon'
    b'tainingSymbol\x12b\n\x19file_containing_extension\x18\x05 \x01(\x0b2$.grpc.reflecti'
    b'on.v1.ExtensionRequestH\x00R\x17fileContainingExtension\x12B\n\x1dall_extensi'
    b'on_numbers_of_type\x18\x06 \x01(\tH\x00R\x19allExtensionNumbersOfType\x12%\n\rlist_se'
    b'rvices\x18\x07 \x01(\tH\x00R\x0clistServicesB\x11\n\x0fmessage_request"f\n\x10ExtensionRequ'
    b"est\x12'\n\x0fcontaining_type\x18\x01 \x01(\tR\x0econtainingType\x12)\n\x10extension_number"
    b'\x18\x02 \x01(\x05R\x0fextensionNumber"\xae\x04\n\x18ServerReflectionResponse\x12\x1d\n\nvalid_ho'
    b'st\x18\x01 \x01(\tR\tvalidHost\x12V\n\x10original_request\x18\x02 \x01(\x0b2+.grpc.reflection.'
    b'v1.ServerReflectionRequestR\x0foriginalRequest\x12f\n\x18file_descriptor_r'
    b'esponse\x18\x04 \x01(\x0b2*.grpc.reflection.v1.FileDescriptorResponseH\x00R\x16fil'
    b'eDescriptorResponse\x12r\n\x1eall_extension_numbers_response\x18\x05 \x01(\x0b2+.gr'
    b'pc.reflection.v1.ExtensionNumberResponseH\x00R\x1ballExtensionNumbersR'
    b"esponse\x12_\n\x16list_services_response\x18\x06 \x01(\x0b2'.grpc.reflection.v1.Lis"
    b'tServiceResponseH\x00R\x14listServicesResponse\x12J\n\x0eerror_response\x18\x07 \x01(\x0b'
    b'2!.grpc.reflection.v1.ErrorResponseH\x00R\rerrorResponseB\x12\n\x10message_'
    b'response"L\n\x16FileDescriptorResponse\x122\n\x15file_descriptor_proto\x18\x01 \x03('
    b'\x0cR\x13fileDescriptorProto"j\n\x17ExtensionNumberResponse\x12$\n\x0ebase_type_n'
    b'ame\x18\x01 \x01(\tR\x0cbaseTypeName\x12)\n\x10extension_number\x18\x02 \x03(\x05R\x0fextensionNumb'
    b'er"T\n\x13ListServiceResponse\x12=\n\x07service\x18\x01 \x03(\x0b2#.grpc.reflection.v1.'
    b'ServiceResponseR\x07service"%\n\x0fServiceResponse\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name"'
    b'S\n\rErrorResponse\x12\x1d\n\nerror_code\x18\x01 \x01(\x05R\terrorCode\x12#\n\rerror_message'
    b'\x18\x02 \x01(\tR\x0cerrorMessage2\x89\x01\n\x10ServerReflection\x12u\n\x14ServerReflectionInf'
    b'o\x12+.grpc.reflection.v1.ServerReflectionRequest\x1a,.grpc.reflection'
    b'.v1.ServerReflectionResponse(\x010\x01b\x06proto3'
)
