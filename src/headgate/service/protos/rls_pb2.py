"""The messages of proto/envoy/service/ratelimit/v3/rls.proto. Made by scripts/protos: do not edit."""

from headgate.service.protos.pool import load

load(
    globals(),
    b'\n$envoy/service/ratelimit/v3/rls.proto\x12\x1aenvoy.service.ratelimit.'
    b'v3\x1a\x1egoogle/protobuf/duration.proto\x1a\x1cgoogle/protobuf/struct.proto'
    b'\x1a\x1egoogle/protobuf/wrappers.proto"\x9e\x01\n\x10RateLimitRequest\x12\x16\n\x06domain\x18'
    b'\x01 \x01(\tR\x06domain\x12Q\n\x0bdescriptors\x18\x02 \x03(\x0b2/.envoy.service.ratelimit.v3.'
    b'RateLimitDescriptorR\x0bdescriptors\x12\x1f\n\x0bhits_addend\x18\x03 \x01(\rR\nhitsAdden'
    b'd"\xaf\x03\n\x13RateLimitDescriptor\x12O\n\x07entries\x18\x01 \x03(\x0b25.envoy.service.ratel'
    b'imit.v3.RateLimitDescriptor.EntryR\x07entries\x12W\n\x05limit\x18\x02 \x01(\x0b2A.envo'
    b'y.service.ratelimit.v3.RateLimitDescriptor.RateLimitOverrideR\x05li'
    b'mit\x12=\n\x0bhits_addend\x18\x03 \x01(\x0b2\x1c.google.protobuf.UInt64ValueR\nhitsAdde'
    b'nd\x1a/\n\x05Entry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12\x14\n\x05value\x18\x02 \x01(\tR\x05value\x1a~\n\x11RateLimit'
    b'Override\x12*\n\x11requests_per_unit\x18\x01 \x01(\rR\x0frequestsPerUnit\x12=\n\x04unit\x18\x02 \x01'
    b'(\x0e2).envoy.service.ratelimit.v3.RateLimitUnitR\x04unit"\xc0\x08\n\x11RateLimi'
    b'tResponse\x12U\n\x0coverall_code\x18\x01 \x01(\x0e22.envoy.service.ratelimit.v3.Rat'
    b'eLimitResponse.CodeR\x0boverallCode\x12Z\n\x08statuses\x18\x02 \x03(\x0b2>.envoy.servi'
    b'ce.ratelimit.v3.RateLimitResponse.DescriptorStatusR\x08statuses\x12^\n\x17'
    b"response_headers_to_add\x18\x03 \x03(\x0b2'.envoy.service.ratelimit.v3.Heade"
    b"rValueR\x14responseHeadersToAdd\x12\\\n\x16request_headers_to_add\x18\x04 \x03(\x0b2'.e"
    b'nvoy.service.ratelimit.v3.HeaderValueR\x13requestHeadersToAdd\x12\x19\n\x08ra'
    b'w_body\x18\x05 \x01(\x0cR\x07rawBody\x12B\n\x10dynamic_metadata\x18\x06 \x01(\x0b2\x17.google.protobu'
    b'f.StructR\x0fdynamicMetadata\x1a\xfc\x01\n\tRateLimit\x12*\n\x11requests_per_unit\x18\x01 \x01'
    b'(\rR\x0frequestsPerUnit\x12P\n\x04unit\x18\x02 \x01(\x0e2<.envoy.service.ratelimit.v3.R'
    b'ateLimitResponse.RateLimit.UnitR\x04unit\x12\x12\n\x04name\x18\x03 \x01(\tR\x04name"]\n\x04Uni'
    b't\x12\x0b\n\x07UNKNOWN\x10\x00\x12\n\n\x06SECOND\x10\x01\x12\n\n\x06MINUTE\x10\x02\x12\x08\n\x04HOUR\x10\x03\x12\x07\n\x03DAY\x10\x04\x12\t\n\x05MON'
    b'TH\x10\x05\x12\x08\n\x04YEAR\x10\x06\x12\x08\n\x04WEEK\x10\x07\x1a\xae\x02\n\x10DescriptorStatus\x12F\n\x04code\x18\x01 \x01(\x0e22.en'
    b'voy.service.ratelimit.v3.RateLimitResponse.CodeR\x04code\x12\\\n\rcurrent'
    b'_limit\x18\x02 \x01(\x0b27.envoy.service.ratelimit.v3.RateLimitResponse.Rate'
    b"LimitR\x0ccurrentLimit\x12'\n\x0flimit_remaining\x18\x03 \x01(\rR\x0elimitRemaining\x12K\n\x14"
    b'duration_until_reset\x18\x04 \x01(\x0b2\x19.google.protobuf.DurationR\x12durationU'
    b'ntilReset"+\n\x04Code\x12\x0b\n\x07UNKNOWN\x10\x00\x12\x06\n\x02OK\x10\x01\x12\x0e\n\nOVER_LIMIT\x10\x02"R\n\x0bHeader'
    b'Value\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12\x14\n\x05value\x18\x02 \x01(\tR\x05value\x12\x1b\n\traw_value\x18\x03 \x01(\x0c'
    b'R\x08rawValue*\\\n\rRateLimitUnit\x12\x0b\n\x07UNKNOWN\x10\x00\x12\n\n\x06SECOND\x10\x01\x12\n\n\x06MINUTE\x10\x02'
    b'\x12\x08\n\x04HOUR\x10\x03\x12\x07\n\x03DAY\x10\x04\x12\t\n\x05MONTH\x10\x05\x12\x08\n\x04YEAR\x10\x062\x82\x01\n\x10RateLimitService\x12n\n'
    b'\x0fShouldRateLimit\x12,.envoy.service.ratelimit.v3.RateLimitRequest\x1a-'
    b'.envoy.service.ratelimit.v3.RateLimitResponseb\x06proto3'
)
