"""The messages of proto/grpc/health/v1/health.proto. Made by scripts/protos: do not edit."""

from headgate.service.protos.pool import load

load(
    globals(),
    b'\n\x1bgrpc/health/v1/health.proto\x12\x0egrpc.health.v1".\n\x12HealthCheckRequ'
    b'est\x12\x18\n\x07service\x18\x01 \x01(\tR\x07service"\xb1\x01\n\x13HealthCheckResponse\x12I\n\x06status\x18'
    b'\x01 \x01(\x0e21.grpc.health.v1.HealthCheckResponse.ServingStatusR\x06status'
    b'"O\n\rServingStatus\x12\x0b\n\x07UNKNOWN\x10\x00\x12\x0b\n\x07SERVING\x10\x01\x12\x0f\n\x0bNOT_SERVING\x10\x02\x12\x13\n\x0f'
    b'SERVICE_UNKNOWN\x10\x03"\x13\n\x11HealthListRequest"\xc4\x01\n\x12HealthListResponse\x12L\n'
    b'\x08statuses\x18\x01 \x03(\x0b20.grpc.health.v1.HealthListResponse.StatusesEntr'
    b'yR\x08statuses\x1a`\n\rStatusesEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x129\n\x05value\x18\x02 \x01(\x0b2#.'
    b'grpc.health.v1.HealthCheckResponseR\x05value:\x028\x012\xfd\x01\n\x06Health\x12P\n\x05Chec'
    b'k\x12".grpc.health.v1.HealthCheckRequest\x1a#.grpc.health.v1.HealthChe'
    b'ckResponse\x12M\n\x04List\x12!.grpc.health.v1.HealthListRequest\x1a".grpc.hea'
    b'lth.v1.HealthListResponse\x12R\n\x05Watch\x12".grpc.health.v1.HealthCheckR'
    b'equest\x1a#.grpc.health.v1.HealthCheckResponse0\x01b\x06proto3'
)
