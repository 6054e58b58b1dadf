"""The service over gRPC: real clients, sync and async, on a real socket."""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from headgate import Rule
from headgate.errors import InvalidSettings, Unauthenticated
from headgate.operations.caller import Caller
from headgate.service.access import Access
from headgate.service.protos import rate_limiter_pb2 as rl
from headgate.service.protos import rls_pb2 as rls
from headgate.service.rpc.method import Method, method_of
from headgate.service.tls import Certificates
from headgate.telemetry.meter import Meter
from tests.acceptance.apps.service_grpc import Serving, serving
from tests.servers import free_port

STUCK = 30.0  # seconds after which a call will never end
RULES = [
    Rule(id="user", quota="3/day fixed_window", endpoints=["/user"]),
    Rule(id="many", quota="1000000/day fixed_window", dimension="user", endpoints=["/many"]),
    Rule(id="ip", quota="2/day fixed_window", dimension="ip", message="Two a day."),
]
OURS, ENVOY = "headgate.v1.RateLimiter", "envoy.service.ratelimit.v3.RateLimitService"
CODE = grpc.StatusCode
METHODS = {
    f"/{OURS}/CheckRateLimit": (rl.CheckRequest(identifier="u", endpoint="/many"), rl.CheckResponse),
    f"/{OURS}/CheckRateLimits": (rl.CheckBatchRequest(), rl.CheckBatchResponse),
    f"/{OURS}/GetRemainingQuota": (rl.QuotaRequest(identifier="u", endpoint="/many"), rl.QuotaResponse),
    f"/{OURS}/ResetLimit": (rl.ResetRequest(identifier="x", endpoint="/many"), rl.ResetResponse),
    f"/{ENVOY}/ShouldRateLimit": (
        rls.RateLimitRequest(domain="d", descriptors=[rls.RateLimitDescriptor()]),
        rls.RateLimitResponse,
    ),
}


class Client:
    """Calls of a channel, with bytes or messages."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def raw(self, path: str, body: bytes, **options: Any) -> bytes:
        answer: bytes = self.channel.unary_unary(path)(body, timeout=STUCK, **options)
        return answer

    def __call__(self, path: str, message: Any, answer: Any, **options: Any) -> Any:
        return answer.FromString(self.raw(path, message.SerializeToString(), **options))

    def check(self, **fields: Any) -> rl.CheckResponse:
        answer: rl.CheckResponse = self(f"/{OURS}/CheckRateLimit", rl.CheckRequest(**fields), rl.CheckResponse)
        return answer

    def code(self, path: str, body: bytes, **options: Any) -> tuple[grpc.StatusCode, str]:
        try:
            self.raw(path, body, **options)
        except grpc.RpcError as error:
            told: Any = error
            return told.code(), told.details()
        return CODE.OK, ""

    def health(self, service: str = "") -> str:
        answer = health_pb2.HealthCheckResponse.FromString(
            self.raw("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service=service).SerializeToString())
        )
        name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        return name


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    with serving(RULES, reflection=True) as started:
        yield started


@pytest.fixture
def client(served: Serving) -> Iterator[Client]:
    with grpc.insecure_channel(served.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        yield Client(channel)


def test_a_sync_client(client: Client) -> None:
    answers = [client.check(identifier="sync", dimension=rl.USER, endpoint="/user") for _ in range(4)]
    assert [answer.allowed for answer in answers] == [True, True, True, False]
    last = answers[-1]
    assert (last.limit, last.remaining, last.current_count, last.rule) == (3, 0, 3, "user")
    assert (last.state, last.reason) == ("throttled", "over_limit")
    assert 0 < last.retry_after <= 86_400
    assert last.reset_at > 1_700_000_000
    assert last.limits[0].quota == "3/1d fixed_window"
    quota = client(f"/{OURS}/GetRemainingQuota", rl.QuotaRequest(identifier="sync", endpoint="/user"), rl.QuotaResponse)
    assert (quota.allowed, quota.remaining) == (False, 0)
    client(f"/{OURS}/ResetLimit", rl.ResetRequest(identifier="sync", endpoint="/user"), rl.ResetResponse)
    assert client.check(identifier="sync", endpoint="/user").remaining == 2


def test_an_async_client_and_a_batch_in_order(served: Serving) -> None:
    checks = [rl.CheckRequest(identifier=f"batch-{number % 7}", endpoint="/many") for number in range(1_000)]

    async def call() -> rl.CheckBatchResponse:
        async with grpc.aio.insecure_channel(served.address) as channel:
            method = channel.unary_unary(
                f"/{OURS}/CheckRateLimits",
                request_serializer=rl.CheckBatchRequest.SerializeToString,
                response_deserializer=rl.CheckBatchResponse.FromString,
            )
            answer: rl.CheckBatchResponse = await method(rl.CheckBatchRequest(checks=checks), timeout=STUCK)
            return answer

    responses = asyncio.run(call()).responses
    assert [one.current_count for one in responses] == [number // 7 + 1 for number in range(1_000)]


def test_envoys_protocol(client: Client) -> None:
    entry = rls.RateLimitDescriptor.Entry(key="remote_address", value="192.0.2.77")
    request = rls.RateLimitRequest(domain="d", descriptors=[rls.RateLimitDescriptor(entries=[entry])])
    answers = [client(f"/{ENVOY}/ShouldRateLimit", request, rls.RateLimitResponse) for _ in range(3)]
    assert [answer.overall_code for answer in answers] == [1, 1, 2]
    assert [answer.statuses[0].limit_remaining for answer in answers] == [1, 0, 0]
    assert b"Two a day." in answers[-1].raw_body


class Timed(Meter):
    """Remembers what it was told of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def record_call(self, protocol: str, seconds: float, checks: int = 1) -> None:
        assert seconds > 0
        self.calls.append((protocol, checks))


def test_calls_are_timed() -> None:
    meter = Timed()
    with serving(RULES, meter=meter) as started, grpc.insecure_channel(started.address) as channel:
        client = Client(channel)
        client.check(identifier="u", endpoint="/many")
        client.raw(f"/{OURS}/CheckRateLimits", rl.CheckBatchRequest(checks=[rl.CheckRequest()] * 7).SerializeToString())
        descriptors = [rls.RateLimitDescriptor()] * 3
        envoy = rls.RateLimitRequest(domain="d", descriptors=descriptors).SerializeToString()
        client.raw(f"/{ENVOY}/ShouldRateLimit", envoy)
        client.code(f"/{OURS}/CheckRateLimit", INVALID_UTF_8)
    assert meter.calls == [("grpc", 1), ("grpc", 7), ("envoy", 3), ("grpc", 1)]


INVALID_UTF_8: Final = b"\x0a\x02\xff\xfe"  # field 1, a text


@pytest.mark.parametrize(
    ("path", "body", "code", "details"),
    [
        (f"/{OURS}/CheckRateLimit", b"\x0a\xffgarbage", CODE.INVALID_ARGUMENT, "cannot be read"),
        (f"/{OURS}/CheckRateLimit", INVALID_UTF_8, CODE.INVALID_ARGUMENT, "cannot be read"),
        (f"/{OURS}/GetRemainingQuota", INVALID_UTF_8, CODE.INVALID_ARGUMENT, "cannot be read"),
        (f"/{OURS}/ResetLimit", INVALID_UTF_8, CODE.INVALID_ARGUMENT, "cannot be read"),
        (f"/{ENVOY}/ShouldRateLimit", INVALID_UTF_8, CODE.INVALID_ARGUMENT, "cannot be read"),
        (f"/{OURS}/CheckRateLimits", b"\x0a\x04" + INVALID_UTF_8, CODE.INVALID_ARGUMENT, "cannot be read"),
        (f"/{OURS}/CheckRateLimit", rl.CheckRequest(cost=-1), CODE.INVALID_ARGUMENT, "cost: must be"),
        (
            f"/{OURS}/CheckRateLimits",
            rl.CheckBatchRequest(checks=[rl.CheckRequest(cost=-(2**63))]),
            CODE.INVALID_ARGUMENT,
            "checks[0]: cost: must be",
        ),
        (
            f"/{OURS}/CheckRateLimits",
            rl.CheckBatchRequest(checks=[rl.CheckRequest()] * 1_001),
            CODE.INVALID_ARGUMENT,
            "checks: at most 1,000 in one call, got 1,001",
        ),
        (
            f"/{ENVOY}/ShouldRateLimit",
            rls.RateLimitRequest(domain="d", descriptors=[rls.RateLimitDescriptor()] * 10_000),
            CODE.INVALID_ARGUMENT,
            "descriptors: must be from 1 to 1,000, got 10,000",
        ),
        (f"/{OURS}/CheckRateLimit", b"\0" * 5_000_000, CODE.RESOURCE_EXHAUSTED, "larger than max"),
        (f"/{ENVOY}/ShouldRateLimit", b"\0" * 5_000_000, CODE.RESOURCE_EXHAUSTED, "larger than max"),
        (f"/{OURS}/Nothing", b"", CODE.UNIMPLEMENTED, ""),
        ("/nobody.Nothing/Check", b"", CODE.UNIMPLEMENTED, ""),
    ],
)
def test_bad_input_has_a_precise_status_and_the_service_goes_on(
    client: Client, path: str, body: Any, code: grpc.StatusCode, details: str
) -> None:
    got, told = client.code(path, body if isinstance(body, bytes) else body.SerializeToString())
    assert (got, details in told) == (code, True), told
    assert client.check(identifier="after", endpoint="/many").allowed


class Faulty:
    """A service with a fault in it."""

    name: Final = "test.Faulty"
    protocol: Final[Literal["grpc"]] = "grpc"

    def __init__(self) -> None:
        self.methods: Mapping[str, Method] = {"Check": method_of(rl.CheckRequest, self.check, "viewer")}

    async def check(self, _: rl.CheckRequest) -> rl.CheckResponse:
        raise LookupError("the password is hunter2")


def test_a_fault_is_internal_and_has_an_id_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving(RULES, others=[Faulty()]) as started, grpc.insecure_channel(started.address) as channel:
        code, details = Client(channel).code("/test.Faulty/Check", b"")
    assert code == CODE.INTERNAL
    assert "hunter2" not in details
    assert f"fault {details.rpartition('fault ')[2]}" in caplog.text


def test_a_store_that_is_away_is_unavailable_where_rules_fail_closed() -> None:
    rules = [Rule(id="closed", quota="1/day", failure_mode="closed"), Rule(id="open", quota="1/day", dimension="ip")]
    store = f"redis://127.0.0.1:{free_port()}/0"
    with serving(rules, store=store) as started, grpc.insecure_channel(started.address) as channel:
        client = Client(channel)
        request = rl.CheckRequest(identifier="u").SerializeToString()
        code, details = client.code(f"/{OURS}/CheckRateLimit", request)
        assert (code, details.partition(":")[0]) == (
            CODE.UNAVAILABLE,
            "the store cannot decide now, and rule 'closed' fails closed",
        )
        assert client.check(identifier="192.0.2.1", dimension=rl.IP).reason == "fail_open"
        entry = rls.RateLimitDescriptor.Entry(key="user", value="u")
        envoy = rls.RateLimitRequest(domain="d", descriptors=[rls.RateLimitDescriptor(entries=[entry])])
        assert client.code(f"/{ENVOY}/ShouldRateLimit", envoy.SerializeToString())[0] == CODE.UNAVAILABLE
        reset = rl.ResetRequest(identifier="u").SerializeToString()
        assert client.code(f"/{OURS}/ResetLimit", reset)[0] == CODE.UNAVAILABLE


class Tokens(Access):
    """Tokens of every kind, by their names."""

    def __init__(self) -> None:
        super().__init__(data_token="data")

    async def caller(self, token: str | None, *, stale: bool = False) -> Caller:
        if token == "viewer":
            return Caller("v", "viewer", frozenset({"check"}))
        if token == "other-scope":
            return Caller("o", "admin", frozenset({"rules"}))
        if token in ("expired", "revoked"):
            raise Unauthenticated(f"this token has {token}")
        return await super().caller(token, stale=stale)


REFLECTIONS = [f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")]


def reflect(channel: grpc.Channel, path: str, *requests: Any, **options: Any) -> list[Any]:
    method: Any = channel.stream_stream(path)
    answers = method(iter([request.SerializeToString() for request in requests]), timeout=STUCK, **options)
    return [reflection_pb2.ServerReflectionResponse.FromString(answer) for answer in answers]


def test_every_method_and_every_token() -> None:
    tokens = {None: 401, "wrong": 401, "expired": 401, "revoked": 401, "other-scope": 403, "viewer": 200, "data": 200}
    codes = {401: CODE.UNAUTHENTICATED, 403: CODE.PERMISSION_DENIED, 200: CODE.OK}
    with serving(RULES, access=Tokens(), reflection=True) as started, grpc.insecure_channel(started.address) as channel:
        client = Client(channel)
        for token, status in tokens.items():
            metadata = [] if token is None else [("authorization", f"Bearer {token}")]
            for path, (message, _) in METHODS.items():
                expected = codes[403 if token == "viewer" and path.endswith("ResetLimit") else status]
                got, details = client.code(path, message.SerializeToString(), metadata=metadata)
                assert (token, path, got) == (token, path, expected), details
            for path in REFLECTIONS:
                request = reflection_pb2.ServerReflectionRequest(list_services="")
                try:
                    reflect(channel, path, request, metadata=metadata)
                except grpc.RpcError as error:
                    told: Any = error
                    assert (token, told.code()) == (token, codes[status])
                else:
                    assert status == 200
        assert client.health() == "SERVING"
        basic = [("authorization", "Basic data")]
        assert client.code(f"/{OURS}/CheckRateLimit", b"", metadata=basic)[0] == CODE.UNAUTHENTICATED
        lower = [("authorization", "bearer  data ")]
        assert client.code(f"/{OURS}/CheckRateLimit", b"", metadata=lower)[0] == CODE.OK


@pytest.mark.parametrize("path", REFLECTIONS)
def test_reflection_is_enough_to_call_by(client: Client, path: str) -> None:
    """As grpcurl does: list the services, fetch their files and what these import, and make messages of them."""
    (listed,) = reflect(client.channel, path, reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in listed.list_services_response.service}
    assert names >= {OURS, ENVOY, "grpc.health.v1.Health"}
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    for answer in reflect(
        client.channel, path, *(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in names)
    ):
        assert not answer.HasField("error_response"), answer
        for serialized in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(serialized)
            files[file.name] = file
    pool = descriptor_pool.DescriptorPool()
    while files:  # those first whose imports are there
        for name, file in list(files.items()):
            if not any(needed in files for needed in file.dependency):
                pool.Add(files.pop(name))
    method = pool.FindServiceByName(OURS).FindMethodByName("CheckRateLimit")
    request = message_factory.GetMessageClass(method.input_type)(identifier="reflected", endpoint="/many")
    answer = message_factory.GetMessageClass(method.output_type)
    assert client(f"/{OURS}/CheckRateLimit", request, answer).allowed


def test_reflection_is_not_there_unless_asked_for() -> None:
    with serving(RULES) as started, grpc.insecure_channel(started.address) as channel:
        for path in REFLECTIONS:
            with pytest.raises(grpc.RpcError) as caught:
                reflect(channel, path, reflection_pb2.ServerReflectionRequest(list_services=""))
            told: Any = caught.value
            assert told.code() == CODE.UNIMPLEMENTED


def test_reflection_of_garbage(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(client.channel.stream_stream(REFLECTIONS[0])(iter([b"\x0a\xffx"]), timeout=STUCK))
    told: Any = caught.value
    assert told.code() == CODE.INVALID_ARGUMENT


def test_health_until_the_end() -> None:
    with serving(RULES) as started, grpc.insecure_channel(started.address) as channel:
        client = Client(channel)
        assert [client.health(name) for name in ("", OURS, ENVOY)] == ["SERVING"] * 3
        request = health_pb2.HealthCheckRequest(service="nobody").SerializeToString()
        assert client.code("/grpc.health.v1.Health/Check", request)[0] == CODE.NOT_FOUND
        watched = client.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=STUCK)
        states = (health_pb2.HealthCheckResponse.FromString(one).status for one in watched)
        assert next(states) == health_pb2.HealthCheckResponse.SERVING
        started.loop.call_soon_threadsafe(started.server.drain)
        assert next(states) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert [client.health(name) for name in ("", OURS, ENVOY)] == ["NOT_SERVING"] * 3
        assert client.check(identifier="u", endpoint="/many").allowed  # it still serves
        stopping = asyncio.run_coroutine_threadsafe(started.server.stop(10 * STUCK), started.loop)
        assert list(states) == []  # who watches is sent home
        stopping.result(STUCK)


def test_calls_under_way_are_finished_before_it_stops() -> None:
    class Slow:
        name: Final = "test.Slow"
        protocol: Final[Literal["grpc"]] = "grpc"

        def __init__(self) -> None:
            self.begun = asyncio.Event()
            self.methods: Mapping[str, Method] = {"Check": method_of(rl.CheckRequest, self.check, "viewer")}
            self.go_on: asyncio.Event = asyncio.Event()

        async def check(self, _: rl.CheckRequest) -> rl.CheckResponse:
            self.begun.set()
            await self.go_on.wait()
            return rl.CheckResponse(allowed=True)

    slow = Slow()
    with serving(RULES, others=[slow]) as started, grpc.insecure_channel(started.address) as channel:
        call = Client(channel).channel.unary_unary("/test.Slow/Check").future(b"", timeout=STUCK)
        started.run(slow.begun.wait())
        stopping = asyncio.run_coroutine_threadsafe(started.server.stop(STUCK), started.loop)
        started.loop.call_soon_threadsafe(slow.go_on.set)
        assert rl.CheckResponse.FromString(call.result()).allowed
        stopping.result(STUCK)


class Authority:
    """Makes certificates."""

    def __init__(self, name: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self.name, self.key.public_key(), ca=True)

    def _sign(self, subject: x509.Name, key: Any, *, ca: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]),
                critical=False,
            )
        )
        return builder.sign(self.key, hashes.SHA256())

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """A key and its certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key.public_key(), ca=False)
        plain = serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        return pem, certificate.public_bytes(serialization.Encoding.PEM)


def write(directory: Path, key: bytes, certificate: bytes) -> tuple[Path, Path]:
    """The two as files that look changed, whatever the clock's grain."""
    files = directory / "server.crt", directory / "server.key"
    for file, content in zip(files, (certificate, key), strict=True):
        file.write_bytes(content)
        stamp = file.stat().st_mtime_ns + len(content)
        os.utime(file, ns=(stamp, stamp))
    return files


def allowed(address: str, roots: bytes, pair: tuple[bytes, bytes] | None = None) -> bool:
    """Whether a client that trusts these roots, with this key and certificate, is answered."""
    credentials = grpc.ssl_channel_credentials(roots, *(pair or (None, None)))
    own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    with grpc.secure_channel(address, credentials, options=own) as channel:
        code, _ = Client(channel).code(f"/{OURS}/CheckRateLimit", b"")
    assert code in (CODE.OK, CODE.UNAVAILABLE)
    return code == CODE.OK


@pytest.mark.filterwarnings("ignore")
class TestTls:
    def test_certificates_are_read_again_when_they_change(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        old, new = Authority("old"), Authority("new")
        files = write(tmp_path, *old.issue("server"))
        certificates = Certificates(*files, protocol="h2")
        with serving(RULES, tls=certificates.context) as started:

            def replace(key: bytes, certificate: bytes) -> None:
                write(tmp_path, key, certificate)
                if certificates.refresh():
                    started.run(started.server.replace_tls(certificates.context))

            assert allowed(started.address, old.pem)
            assert not allowed(started.address, new.pem)
            replace(*new.issue("server"))
            assert allowed(started.address, new.pem)
            assert not allowed(started.address, old.pem)
            replace(b"no key", b"no certificate")
            assert allowed(started.address, new.pem)  # the last good ones
            assert "keeping the current certificate" in caplog.text
            files[0].unlink()
            assert not certificates.refresh()
            assert allowed(started.address, new.pem)
            replace(*old.issue("server"))
            assert allowed(started.address, old.pem)

    def test_clients_must_show_a_certificate_where_that_is_asked(self, tmp_path: Path) -> None:
        authority, clients, strangers = Authority("servers"), Authority("clients"), Authority("strangers")
        files = write(tmp_path, *authority.issue("server"))
        client_ca = tmp_path / "clients.crt"
        client_ca.write_bytes(clients.pem)
        with serving(RULES, tls=Certificates(*files, client_ca, protocol="h2").context) as started:
            assert allowed(started.address, authority.pem, clients.issue("client"))
            assert not allowed(started.address, authority.pem)
            assert not allowed(started.address, authority.pem, strangers.issue("client"))

    def test_files_that_were_never_good(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidSettings, match=r"server\.crt, .*server\.key: not a valid certificate and key"):
            Certificates(*write(tmp_path, b"no key", b"no certificate"), protocol="h2")
        with pytest.raises(InvalidSettings, match="nowhere: not a valid certificate and key"):
            Certificates(tmp_path / "nowhere", tmp_path / "nowhere", protocol="h2")
