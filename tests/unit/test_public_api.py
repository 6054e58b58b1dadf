"""What `import headgate` gives, and what it takes: the names are fixed, and nothing third-party is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headgate


def test_the_public_names() -> None:
    assert sorted(headgate.__all__) == [
        "AsyncLimiter",
        "AsyncReservation",
        "AsyncSlot",
        "ChangeConflict",
        "DatabaseError",
        "DatabaseUnavailable",
        "Decision",
        "HeadgateError",
        "IdempotencyConflict",
        "InvalidCheck",
        "InvalidQuota",
        "InvalidRule",
        "InvalidStore",
        "LimitStatus",
        "Limiter",
        "NotFound",
        "Quota",
        "RateLimited",
        "Reservation",
        "Rule",
        "Settlement",
        "Slot",
        "StoreError",
        "StoreFull",
        "StoreTimeout",
        "StoreUnavailable",
        "__version__",
    ]


def test_every_public_name_is_there() -> None:
    missing = [name for name in headgate.__all__ if not hasattr(headgate, name)]
    assert missing == []


def test_import_loads_few_modules() -> None:
    loaded = run("import sys, headgate; print(len([name for name in sys.modules if name.startswith('headgate')]))")
    assert int(loaded) <= 40
    assert "Limiter" in dir(headgate)
    with pytest.raises(AttributeError, match="has no attribute 'Limitor'"):
        _ = headgate.Limitor  # type: ignore[attr-defined]


def test_a_limiter_in_memory_loads_what_it_uses() -> None:
    loaded = run("""
import sys
from headgate import Limiter
Limiter("1/s").check("a")
print(*sys.modules)
""").split()
    own = [name for name in loaded if name.startswith("headgate")]
    assert len(own) <= 72
    unused = ("leases", "regions", "slots", "heartbeat", "explanation", "decorator", "redis", "embedded")
    assert [name for name in own if name.endswith(unused)] == []
    assert not {"asyncio", "ssl", "tempfile"}.intersection(loaded)


def test_the_version_is_one() -> None:
    assert all(part.isdecimal() for part in headgate.__version__.split(".")[:2])


def test_every_error_is_a_headgate_error() -> None:
    errors = [
        value for value in vars(headgate).values() if isinstance(value, type) and issubclass(value, BaseException)
    ]
    assert len(errors) == 15
    assert all(issubclass(error, headgate.HeadgateError) for error in errors)


def run(code: str) -> str:
    """What a Python of its own prints, which has imported nothing yet."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_library_in_memory_imports_the_standard_library_only() -> None:
    assert (
        run("""
import sys
before = set(sys.modules)
import asyncio
from headgate import AsyncLimiter, Limiter

async def main():
    async with AsyncLimiter("10/second; 100/minute") as limiter:
        return await limiter.check("a")

with Limiter("100/minute") as limiter:
    assert limiter.check("a")
assert asyncio.run(main())
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names)))
""")
        == "['headgate']"
    )


@pytest.mark.parametrize("limiter", ["Limiter", "AsyncLimiter"])
@pytest.mark.parametrize("missing", ["redis", "hiredis"])
def test_a_redis_store_without_its_packages_says_what_to_install(limiter: str, missing: str) -> None:
    message = run(f"""
import sys
sys.modules[{missing!r}] = None  # as if it were not installed
import headgate
try:
    headgate.{limiter}("100/minute", store="redis://localhost:6379/0")
except ImportError as error:
    print(error)
""")
    assert "pip install 'headgate[redis]'" in message
    assert "redis://localhost:6379/0" in message


def test_a_redis_store_connects_only_when_it_is_used() -> None:
    """A program starts while its Redis is down."""
    limiter = headgate.Limiter("100/minute", store="redis://127.0.0.1:1/0")
    limiter.close()
