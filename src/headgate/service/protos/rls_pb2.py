"""The messages of proto/envoy/service/ratelimit/v3/rls.proto. Made by scripts/protos: do not edit."""

from headgate.service.protos.pool import load

load(
    globals(),
    b'\n$envoy/service/ratelimit/v3/rls.proto\x12\x1aenvoy.service.ratelimit.'
    b'v3\x1a\x1egoogle/protobuf/duration.proto\x1a\x1egoogle/protobuf/wrappers.pro'
    b'to"\x9e\x01\n\x10RateLimitRequest\x12\x16\n\x06domain\x18\x01 \x01(\tR\x06domain\x12Q\n\x0bdescriptors\x18\x02'
    b' \x03(\x0b2/.envoy.service.ratelimit.v3.RateLimitDescriptorR\x0bdescripto'
    b'rs\x12\x1f\n\x0bhits_addend\x18\x03 \x01(\rR\nhitsAddend"\xaf\x03\n\x13RateLimitDescriptor\x12O\n\x07e'
    b'ntries\x18\x01 \x03(\x0b25.envoy.service.ratelimit.v3.RateLimitDescriptor.En'
    b'tryR\x07entries\x12W\n\x05limit\x18\x02 \x01(\x0b2A.envoy.service.ratelimit.v3.RateLim'
    b'itDescriptor.RateLimitOverrideR\x05limit\x12=\n\x0bhits_addend\x18\x03 \x01(\x0b2\x1c.goo'
    b'gle.protobuf.UInt64ValueR\nhitsAddend\x1a/\n\x05Entry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12'
    b'\x14\n\x05value\x18\x02 \x01(\tR\x05value\x1a~\n\x11RateLimitOverride\x12*\n\x11requests_per_unit\x18'
    b'\x01 \x01(\rR\x0frequestsPerUnit\x12=\n\x04unit\x18\x02 \x01(\x0e2).envoy.service.ratelimit.v'
    b'3.RateLimitUnitR\x04unit"\xfc\x07\n\x11RateLimitResponse\x12U\n\x0coverall_code\x18\x01 \x01('
    b'\x0e22.envoy.service.ratelimit.v3.RateLimitResponse.CodeR\x0boverallCo'
    b'de\x12Z\n\x08statuses\x18\x02 \x03(\x0b2>.envoy.service.ratelimit.v3.RateLimitRespo'
    b'nse.DescriptorStatusR\x08statuses\x12^\n\x17response_headers_to_add\x18\x03 \x03(\x0b2'
    b"'.envoy.service.ratelimit.v3.HeaderValueR\x14responseHeadersToAdd\x12\\"
    b"\n\x16request_headers_to_add\x18\x04 \x03(\x0b2'.envoy.service.ratelimit.v3.Head"
    b'erValueR\x13requestHeadersToAdd\x12\x19\n\x08raw_body\x18\x05 \x01(\x0cR\x07rawBody\x1a\xfc\x01\n\tRate'
    b'Limit\x12*\n\x11requests_per_unit\x18\x01 \x01(\rR\x0frequestsPerUnit\x12P\n\x04unit\x18\x02 \x01(\x0e2'
    b'<.envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.UnitR\x04u'
    b'nit\x12\x12\n\x04name\x18\x03 \x01(\tR\x04name"]\n\x04Unit\x12\x0b\n\x07UNKNOWN\x10\x00\x12\n\n\x06SECOND\x10\x01\x12\n\n\x06MINU'
    b'TE\x10\x02\x12\x08\n\x04HOUR\x10\x03\x12\x07\n\x03DAY\x10\x04\x12\t\n\x05MONTH\x10\x05\x12\x08\n\x04YEAR\x10\x06\x12\x08\n\x04WEEK\x10\x07\x1a\xae\x02\n\x10Descr'
    b'iptorStatus\x12F\n\x04code\x18\x01 \x01(\x0e22.envoy.service.ratelimit.v3.RateLimit'
    b'Response.CodeR\x04code\x12\\\n\rcurrent_limit\x18\x02 \x01(\x0b27.envoy.service.ratel'
    b"imit.v3.RateLimitResponse.RateLimitR\x0ccurrentLimit\x12'\n\x0flimit_remai"
    b'ning\x18\x03 \x01(\rR\x0elimitRemaining\x12K\n\x14duration_until_reset\x18\x04 \x01(\x0b2\x19.googl'
    b'e.protobuf.DurationR\x12durationUntilReset"+\n\x04Code\x12\x0b\n\x07UNKNOWN\x10\x00\x12\x06\n\x02'
    b'OK\x10\x01\x12\x0e\n\nOVER_LIMIT\x10\x02"R\n\x0bHeaderValue\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12\x14\n\x05value\x18\x02'
    b' \x01(\tR\x05value\x12\x1b\n\traw_value\x18\x03 \x01(\x0cR\x08rawValue*\\\n\rRateLimitUnit\x12\x0b\n\x07UNK'
    b'NOWN\x10\x00\x12\n\n\x06SECOND\x10\x01\x12\n\n\x06MINUTE\x10\x02\x12\x08\n\x04HOUR\x10\x03\x12\x07\n\x03DAY\x10\x04\x12\t\n\x05MONTH\x10\x05\x12\x08\n\x04'
    b'YEAR\x10\x062\x82\x01\n\x10RateLimitService\x12n\n\x0fShouldRateLimit\x12,.envoy.service.r'
    b'atelimit.v3.RateLimitRequest\x1a-.envoy.service.ratelimit.v3.RateLi'
    b'mitResponseb\x06proto3'
)
