"""Secrets that the whole service is told are in none of its logs, answers, events, metrics and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import httpx

from headgate.service.protos import rate_limiter_pb2 as rl
from headgate.service.protos import rls_pb2 as rls
from tests.servers import Server, default_binary
from tests.service import warm_service
from tests.waiting import until

STUCK = 60.0
API_KEY = "sk-live-4eC39HqLyjWDarjtT1zdp7dc"
PASSWORD = "the-password-of-redis"
DATA_TOKEN = "the-token-of-the-data-plane"


def test_no_secret_is_anywhere(tmp_path: Path) -> None:
    with Server(default_binary(), options=("--requirepass", PASSWORD)) as redis:
        store = f"redis://:{PASSWORD}@127.0.0.1:{redis.port}/0?timeout=10"
        settings: dict[str, Any] = {"store": store, "data_token": DATA_TOKEN, "log_level": "debug"}
        with warm_service(tmp_path, **settings) as service:
            service.secrets.append(API_KEY)
            seen = []
            data = {"Authorization": f"Bearer {DATA_TOKEN}"}
            with httpx.Client(base_url=service.url, headers=service.headers, timeout=STUCK) as client:
                rule = {"id": "keys", "dimension": "api_key", "limit": 1, "window": 3600}
                assert client.post("/api/v1/rules", json=rule).status_code == 201
                wanted = {"name": "ci", "role": "admin", "scopes": ["check", "rules", "users", "events", "tokens"]}
                made = client.post("/api/v1/tokens", json=wanted).json()["token"]
                service.secrets.append(made)
                for headers in (data, {"Authorization": f"Bearer {made}"}, {"Authorization": f"Bearer x{made}"}):
                    for facts in ({"api_key": API_KEY}, {"api_key": API_KEY, "cost": -1}, {"api_key": [API_KEY]}):
                        for path in ("/v1/check", "/v1/peek", "/v1/reset", "/v1/check"):
                            seen.append(client.post(path, json=facts, headers=headers))
                    seen.append(client.get("/v1/authorize", headers={**headers, "X-API-Key": API_KEY}))
                with grpc.insecure_channel(service.grpc_address) as channel:
                    metadata = [("authorization", f"Bearer {DATA_TOKEN}")]
                    check: Any = channel.unary_unary("/headgate.v1.RateLimiter/CheckRateLimit")
                    asked = rl.CheckRequest(identifier=API_KEY, dimension=rl.API_KEY).SerializeToString()
                    entry = rls.RateLimitDescriptor.Entry(key="api_key", value=API_KEY)
                    envoy = rls.RateLimitRequest(domain="d", descriptors=[rls.RateLimitDescriptor(entries=[entry])])
                    limit: Any = channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
                    answers = [check(asked, timeout=STUCK, metadata=metadata)]
                    answers.append(limit(envoy.SerializeToString(), timeout=STUCK, metadata=metadata))
                    assert not [answer for answer in answers if API_KEY.encode() in answer]
                redis.stop()

                def fails_open() -> bool:  # what is known to be refused is refused for a second more
                    seen.append(client.post("/v1/check", json={"api_key": API_KEY}, headers=data))
                    return bool(seen[-1].json()["reason"] == "fail_open")

                until(fails_open)
                seen.append(client.post("/v1/reset", json={"api_key": API_KEY}, headers=data))
                assert seen[-1].status_code == 503
                until(lambda: len(client.get("/api/v1/events").json()["events"]) >= 2)
                pages = (
                    "/api/v1/events",
                    "/api/v1/events/top",
                    "/api/v1/changes",
                    "/api/v1/tokens",
                    "/metrics",
                    "/readyz",
                )
                seen += [client.get(page) for page in pages]
            told = [
                one for one in seen for secret in service.secrets if secret in one.text or secret in str(one.headers)
            ]
            assert told == []
            assert service.stop() == 0
        assert "cannot decide" in service.log
        admin_token, *others = service.secrets
        for file in (path for path in service.data_dir.rglob("*") if path.is_file()):
            found = [secret for secret in others if secret.encode() in file.read_bytes()]
            assert (file.name, found) == (file.name, [])
            assert (admin_token.encode() in file.read_bytes()) == (file.name == "admin-token")
