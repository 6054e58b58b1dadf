from headgate import Limiter
from headgate.testing import FakeClock


def test_a(redis_url: str) -> None:
    clock = FakeClock(1_700_000_000)
    limiter = Limiter("2/minute", store=redis_url, clock=clock)
    assert [limiter.check("a").allowed for _ in range(3)] == [True, True, False]
